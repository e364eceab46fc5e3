"""What a dashboard shows beside a trial: its rule, its curve, and once a rule the kernels that were generated."""

from pathlib import Path
from typing import Any

import optuna
from optuna.artifacts import get_all_artifact_meta

from archsearch.mixers.zoo import rules
from archsearch.studies.files.directory import Measurement
from archsearch.studies.search.artifacts import kernel_source
from archsearch.studies.search.proposals import Proposals
from archsearch.studies.search.samplers import SamplerOptions
from archsearch.studies.search.telling import Ending
from archsearch.studies.tasks.direction import Direction

CURVE = [
    Measurement(1, 50, 0.5, {"loss": 2.0}, 1.0),
    Measurement(1, 100, 1.0, {"loss": 1.0, "recall": 0.5}, 2.0),
]


def proposal(name: str) -> dict[str, Any]:
    return {"rule": str(rules[name]), "rule_hash": rules[name].hash}


def opened(path: Path) -> Proposals:
    return Proposals(path / "optuna.journal", {"loss": Direction.MINIMIZE}, SamplerOptions(), seed=0, holes=1)


def kept(path: Path, proposals: Proposals, number: int) -> dict[str, str]:
    """The files of a trial, by name, as the store has them."""
    trial = proposals._study.get_trials()[number]  # pyright: ignore[reportPrivateUsage]
    metas = get_all_artifact_meta(trial, storage=proposals._study._storage)  # pyright: ignore[reportPrivateUsage]
    assert len({meta.filename for meta in metas}) == len(metas)
    return {meta.filename: (path / "artifacts" / meta.artifact_id).read_text(encoding="utf-8") for meta in metas}


def test_a_complete_trial_has_its_rule_its_curve_and_the_kernels_of_its_rule(tmp_path: Path) -> None:
    proposals = opened(tmp_path)
    for number, name in enumerate(("gated_delta_net", "gated_delta_net", "delta_net")):
        proposals.ask()
        proposals.keep_files(number, proposal(name), CURVE)
        proposals.tell(number, Ending(values=(1.0,)))
    first, again, other = (kept(tmp_path, proposals, number) for number in range(3))
    assert set(first) == set(other) == {"rule.txt", "curve.csv", "kernels.py"} and set(again) == {
        "rule.txt",
        "curve.csv",
    }
    assert first["rule.txt"] == str(rules["gated_delta_net"])
    assert first["curve.csv"].splitlines() == ["tokens,seconds,loss,recall", "50,1.0,2.0,", "100,2.0,1.0,0.5"]
    assert first["kernels.py"] == kernel_source(str(rules["gated_delta_net"])) != other["kernels.py"]
    assert "@triton.jit" in first["kernels.py"]


def test_files_that_were_kept_before_a_crash_are_not_kept_twice(tmp_path: Path) -> None:
    proposals = opened(tmp_path)
    proposals.ask()
    proposals.keep_files(0, proposal("delta_net"), CURVE)
    before = kept(tmp_path, proposals, 0)
    again = opened(tmp_path)
    again.keep_files(0, proposal("delta_net"), CURVE)
    again.tell(0, Ending(values=(1.0,)))
    assert kept(tmp_path, again, 0) == before and len(list((tmp_path / "artifacts").iterdir())) == 3
    assert again.state(0) is optuna.trial.TrialState.COMPLETE


def test_a_trial_without_a_rule_keeps_nothing(tmp_path: Path) -> None:
    proposals = opened(tmp_path)
    proposals.ask()
    proposals.keep_files(0, {}, CURVE)
    assert not (tmp_path / "artifacts").exists()
