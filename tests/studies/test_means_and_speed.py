"""Whether variants had equal means, and what their speed is worth: the figures of the page, not only that it is one."""

from collections.abc import Mapping
from typing import Any

import pytest

from archsearch.studies.evidence.rows import Evidence, Row
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.report.matched_page import compared, matched, matched_section
from archsearch.studies.report.speed_page import speed_section, timed
from archsearch.studies.tasks.direction import Direction

FREE = {"parameters": None, "flops_per_token": None, "state_bytes": None, "tolerance": 0.01}
SOLVED = {**FREE, "state_bytes": "gdn", "tolerance": 0.02}


def row(number: int, name: str, loss: float, *, baseline: bool = False, budget: Any = FREE, **details: Any) -> Row:
    return Row(
        number=number,
        origin=f"baseline:{name}" if baseline else "proposal",
        sampler="tpe",
        choices={"rule/kind": name},
        rule="",
        rule_hash="",
        variant_hash=name,
        outcome=Outcome.COMPLETE,
        attempt=1,
        tokens=1000,
        values={"loss": loss},
        seconds=1.0,
        message="",
        details=details,
        curve=[],
        words=name,
        model={"width": 64, "mlp_ratio": 2.5},
        budget=budget,
    )


def evidence(*rows: Row, **resources: Any) -> Evidence:
    plan: Mapping[str, Any] = {
        "baselines": {"gdn": {}},
        "config": {"finalists": 1, "resources": resources},
        "rung_tokens": [1000],
    }
    return Evidence(plan, {"loss": Direction.MINIMIZE}, rows)


SIZES: dict[str, Any] = {"parameters": 1000, "flops_per_token": 2000, "state_bytes": 400}
LARGER: dict[str, Any] = {"parameters": 1100, "flops_per_token": 1900, "state_bytes": 404}


def test_every_variant_stands_beside_the_reference_with_its_deviations() -> None:
    found = evidence(
        row(0, "eda", 2.0, baseline=True, **LARGER),
        row(1, "gdn", 3.0, baseline=True, **SIZES),
        row(2, "x", 1.0, **SIZES),
    )
    first, second, third = matched(found, compared(found, None), "gdn")
    assert (first.name, first.is_reference, first.off) == ("gdn", True, {})
    assert second.off == pytest.approx({"parameters": 0.1, "flops_per_token": -0.05, "state_bytes": 0.01})
    assert (third.name, set(third.off.values())) == ("x (trial 2)", {0.0})
    page = matched_section(found)[0].html()
    assert "10.0 %" in page and "-5.0 %" in page and "2.50" in page and "The budget matches no quantity" in page
    assert "Not equal: parameters by up to +10.0% (eda); flops per token by up to -5.0% (eda)." in page


def test_what_was_solved_for_is_said_and_equal_means_bring_no_warning() -> None:
    rows = [row(0, "gdn", 3.0, baseline=True, budget=SOLVED, **SIZES), row(1, "x", 1.0, budget=SOLVED, **SIZES)]
    page = matched_section(evidence(*rows))[0].html()
    assert "solved for equal state bytes (that of gdn), within 2.0%" in page and "Not equal" not in page


def test_only_the_best_few_of_a_search_are_compared() -> None:
    rows = [row(0, "gdn", 3.0, baseline=True, **SIZES), row(1, "x", 1.0, **SIZES), row(2, "y", 2.0, **SIZES)]
    assert [name for name, _ in compared(evidence(*rows), None)] == ["gdn", "x (trial 1)"]
    assert matched_section(evidence(rows[1])) == []


def test_step_times_that_were_measured_alone_are_set_against_quality() -> None:
    times = (("gdn", 3.0, 5.0), ("x", 1.0, 9.0), ("y", 2.0, 9.5))
    rows = [row(i, n, loss, baseline=n == "gdn", step_milliseconds=ms) for i, (n, loss, ms) in enumerate(times)]
    measure, found = timed(evidence(*rows, gpus=0.25))
    assert measure == "step_milliseconds"
    assert [(each.name, each.on_front) for each in found] == [
        ("gdn", True),
        ("x (trial 1)", True),
        ("y (trial 2)", False),
    ]
    page = speed_section(evidence(*rows, gpus=0.25))[0].html()
    assert "better is down and to the left" in page and "y (trial 2): 9.5 step milliseconds, loss 2.000" in page


def test_rates_count_only_where_a_trial_had_its_device() -> None:
    rows = [row(0, "gdn", 3.0, baseline=True, tokens_per_second=100.0), row(1, "x", 1.0, tokens_per_second=200.0)]
    alone = timed(evidence(*rows, gpus=0, concurrent=1))
    assert alone[0] == "tokens_per_second" and [each.name for each in alone[1]] == ["x (trial 1)", "gdn"]
    assert [each.on_front for each in alone[1]] == [True, False]
    for shared in ({"gpus": 0.5}, {"gpus": 0, "concurrent": 2}, {"gpus": 0}):
        assert timed(evidence(*rows, **shared))[1] == []
    page = speed_section(evidence(*rows, gpus=0, concurrent=2))[0].html()
    assert "shared their devices" in page and "<svg" not in page
