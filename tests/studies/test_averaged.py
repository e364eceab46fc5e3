"""The value of an objective as a mean over the newest evaluations: in results, told to Optuna, and with documents."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from archsearch.errors import ConfigError
from archsearch.studies.design.config import StudyConfig
from archsearch.studies.evidence.conclusions import conclude
from archsearch.studies.evidence.rows import Evidence, Row
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.tasks.direction import Direction
from archsearch.studies.tasks.registry import Tasks
from archsearch.studies.tasks.text import TextOptions


@pytest.mark.parametrize("averaged", [1, 3])
def test_a_result_holds_the_mean_of_the_newest_evaluations(
    averaged: int, toy: ModuleType, threads: Any, tmp_path: Path
) -> None:
    plan = toy.plan(question={"space": "toy", **({"averaged": averaged} if averaged > 1 else {})})
    toy.study(tmp_path, lambda: threads(toy.ToyBody(0.0)), trials=2, plan=plan)
    trial = StudyDirectory(tmp_path).trial(0)
    result, curve = trial.result(), trial.curve()
    assert result is not None and result.outcome is Outcome.COMPLETE
    losses = [m.values["loss"] for m in curve[-averaged:]]
    assert result.values["loss"] == pytest.approx(sum(losses) / averaged)
    assert (result.values["loss"] == curve[-1].values["loss"]) == (averaged == 1)
    assert result.tokens == curve[-1].tokens


def test_more_evaluations_than_there_are_cannot_be_averaged() -> None:
    config = StudyConfig("delta_family", Tasks(text=TextOptions()), Path("x"), evaluations=4, averaged=4)
    with pytest.raises(ConfigError, match=r"averaged must be in 1 \.\. 4, the evaluations; got 5"):
        replace(config, averaged=5)


def row(entrant: str, seed: int, bits: list[float], value: float) -> Row:
    return Row(
        number=seed,
        origin="",
        sampler="",
        choices={},
        rule="",
        rule_hash="",
        variant_hash="",
        outcome=Outcome.COMPLETE,
        attempt=1,
        tokens=1,
        values={"bits_per_byte": value},
        seconds=1.0,
        message="",
        details={"documents": {"text": [[str(i), 10, each] for i, each in enumerate(bits)]}},
        curve=[],
        seed=seed,
        entrant=entrant,
    )


@pytest.mark.parametrize("moved", [0.0, 0.5])
def test_the_interval_over_documents_lies_about_the_mean_that_is_told(moved: float) -> None:
    """Documents are scored at the end alone; their spread stays, their middle is that of the values."""
    random = np.random.default_rng(0)
    effect = 2 + 3 * random.normal(size=8)
    rows: list[Row] = []
    for seed in range(6):
        base = 20 + random.normal(size=8)
        for entrant, bits, apart in (("base", base, 0.0), ("other", base + effect, moved)):
            rows.append(row(entrant, seed, [float(b) for b in bits], float(bits.sum() / 80) + apart))
    entrants = {
        name: {"role": "baseline" if name == "base" else "finalist", "scores": {}} for name in ("base", "other")
    }
    plan = {
        "entrants": entrants,
        "fixed": {"against": "base", "seeds": list(range(6))},
        "tasks": {"text": {"objective": "bits_per_byte"}},
    }
    concluded = conclude(Evidence(plan, {"bits_per_byte": Direction.MINIMIZE}, rows))
    assert concluded is not None
    (judgement,) = concluded.judgements["bits_per_byte"]
    interval = judgement.difference
    assert judgement.over == "seeds and documents"
    assert interval.mean == pytest.approx(effect.mean() / 10 + moved)
    assert (interval.low + interval.high) / 2 == pytest.approx(interval.mean, abs=0.02)
