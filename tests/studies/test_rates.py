"""Learning rates: every structure meets the whole grid, whoever proposed it and whatever was killed in between."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from archsearch.errors import ConfigError
from archsearch.spaces.lookup import find_space
from archsearch.studies.design.rates import RATE, at_other_rates, check_rates, with_rates, without_rate
from archsearch.studies.evidence.best_rate import best_rate
from archsearch.studies.evidence.rows import read_evidence
from archsearch.studies.files import records
from archsearch.studies.files.decisions import read_decisions
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.search.rungs import RungOptions
from archsearch.studies.tasks.direction import Direction


def others(choices: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The toy at larger rates, which are worse ones; a kind without a rate has no companions."""
    path = "kind=down/rate"
    return [{**choices, path: min(1.0, factor * choices[path])} for factor in (3, 9)] if path in choices else []


def carried_out(toy: ModuleType, threads: Any, home: Path, *, trials: int = 3) -> StudyDirectory:
    rungs = RungOptions(count=2, eta=2, min_peers=2, free_pass_every=0)
    plan = toy.plan({"loss": Direction.MINIMIZE}, rungs=rungs)
    toy.study(home, lambda: threads(toy.ToyBody(0.0)), trials=trials, companions=others, plan=plan)
    return StudyDirectory(home)


@pytest.fixture(scope="module")
def whole(toy: ModuleType, thread_executor: Any, tmp_path_factory: pytest.TempPathFactory) -> StudyDirectory:
    return carried_out(toy, thread_executor, tmp_path_factory.mktemp("rates") / "study")


def proposals(study: StudyDirectory) -> list[dict[str, Any]]:
    return [trial.proposal() or {} for trial in study.trials().values()]


def test_every_structure_is_tried_at_every_rate(whole: StudyDirectory) -> None:
    found = proposals(whole)
    leaders = [p for p in found if p["leader"] is None and p["duplicate_of"] is None]
    assert len([p for p in leaders if p["origin"] == "proposal"]) == 3
    rated = [p for p in leaders if "kind=down/rate" in p["choices"]]
    assert {p["origin"] for p in rated} == {"baseline:middle", "proposal"}
    tried = [p["choices"] for p in found]
    for leader in rated:
        assert all(choices in tried for choices in others(leader["choices"]))


def test_companions_stand_behind_their_leader_and_may_be_stopped(whole: StudyDirectory) -> None:
    companions = [p for p in proposals(whole) if p["leader"] is not None]
    assert all(p["number"] > p["leader"] and p["sampler"] == "enqueued" for p in companions)
    stopped = {decision.trial for decision in read_decisions(whole.rungs) if decision.stop}
    assert stopped & {p["number"] for p in companions if p["origin"] == "proposal"}
    assert not stopped & {p["number"] for p in proposals(whole) if p["origin"] != "proposal"}


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize("trial", ["00000", "00003"])
def test_a_study_killed_before_its_companions_has_them_after_all(
    toy: ModuleType,
    threads: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: StudyDirectory,
    trial: str,
) -> None:
    seen: list[Path] = []

    def watch(path: Path) -> None:
        if seen:
            raise Killed
        if path.match(f"*/trials/{trial}/trial.json"):
            seen.append(path)

    monkeypatch.setattr(records, "watch", watch)
    with monkeypatch.context() as patched:
        patched.setattr("archsearch.studies.search.proposals.Proposals.enqueue", _refusing(seen))
        with pytest.raises(Killed):
            carried_out(toy, threads, tmp_path / "study")
    monkeypatch.undo()
    resumed = carried_out(toy, threads, tmp_path / "study")
    assert [p["choices"] for p in proposals(resumed)] == [p["choices"] for p in proposals(whole)]


def _refusing(seen: list[Path]) -> Any:
    from archsearch.studies.search.proposals import Proposals

    enqueue = Proposals.enqueue

    def killed_after(self: Proposals, choices: Mapping[str, Any], origin: str, *, leader: int | None = None) -> None:
        if seen:
            raise Killed
        enqueue(self, choices, origin, leader=leader)

    return killed_after


def test_of_a_structure_the_best_rate_is_judged(whole: StudyDirectory) -> None:
    plain = read_evidence(whole)
    renamed = [
        replace(row, choices={RATE.join(path.rsplit("kind=down/rate", 1)): c for path, c in row.choices.items()})
        for row in plain.rows
    ]
    evidence = replace(plain, rows=renamed)
    complete = evidence.ended(Outcome.COMPLETE)
    best = min(row.values["loss"] for row in complete if RATE in row.choices)
    assert [row.values["loss"] for row in evidence.judged if RATE in row.choices] == [best]
    assert len(complete) > len(evidence.judged) == len({row.structure for row in complete})


BOTH = {"recall": Direction.MAXIMIZE, "bits_per_byte": Direction.MINIMIZE, "state_bytes": Direction.MINIMIZE}


def measured(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    return [{"recall": recall, "bits_per_byte": bits, "state_bytes": 64.0} for recall, bits in pairs]


@pytest.mark.parametrize("noise", [(0.068, 0.06, 0.055), (0.055, 0.068, 0.06), (0.06, 0.06, 0.06)])
def test_a_recall_at_chance_does_not_choose_the_rate(noise: Sequence[float]) -> None:
    assert best_rate(measured(*zip(noise, (4.9, 4.7, 4.5), strict=True)), BOTH) == 2


def test_the_best_rate_is_the_best_in_mean_rank_over_all_objectives() -> None:
    values = measured((0.9, 4.0), (0.8, 3.6), (0.6, 3.5), (0.7, 3.9))
    assert best_rate(values, BOTH) == 1, "second in both: the first and the third rank 1 in one and badly in the other"
    assert best_rate(values[::-1], BOTH) == 2
    assert best_rate(values, {"recall": Direction.MAXIMIZE}) == 0
    assert best_rate(measured((0.9, 4.0), (0.9, 4.0)), BOTH) == 0, "of equals the earliest"


def test_a_grid_becomes_a_choice_of_the_space() -> None:
    space = with_rates(find_space("delta_family"), (0.001, 0.004))
    assert space.holes[RATE].labels == ("0.001", "0.004")  # pyright: ignore[reportAttributeAccessIssue]
    assert at_other_rates({RATE: "0.001", "rule/decay": "none"}, (0.001, 0.004)) == [
        {RATE: "0.004", "rule/decay": "none"}
    ]
    assert with_rates(space, ()) is space and at_other_rates({"rule/decay": "none"}, ()) == []
    assert without_rate({RATE: "0.001", "rule/decay": "none"}) == {"rule/decay": "none"}


@pytest.mark.parametrize(
    ("rates", "message"),
    [((0.1, -1.0), "learning_rates must be > 0; got -1"), ((0.1, 0.1), "learning_rates must differ; got 0.1 twice")],
)
def test_a_grid_that_is_none_is_refused(rates: tuple[float, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_rates(rates)
