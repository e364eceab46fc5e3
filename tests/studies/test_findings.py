"""What a search teaches: importances, rates and their edges, what rungs were worth, what it cost."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from archsearch.studies.design.rates import RATE
from archsearch.studies.evidence.findings import arms, costs, importances, rate_curves, rung_worth
from archsearch.studies.evidence.rows import Evidence, Row
from archsearch.studies.files.decisions import Decision
from archsearch.studies.files.directory import Measurement
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.report.caveats import warnings
from archsearch.studies.report.figures import search_course
from archsearch.studies.report.findings_page import importance_section, rate_section, rung_section
from archsearch.studies.tasks.direction import Direction


def row(number: int, choices: Mapping[str, Any], loss: float, outcome: Outcome = Outcome.COMPLETE, **facts: Any) -> Row:
    fields: dict[str, Any] = {
        "number": number,
        "origin": "proposal",
        "sampler": "tpe",
        "choices": choices,
        "rule": "",
        "rule_hash": "",
        "variant_hash": str(number),
        "outcome": outcome,
        "attempt": 1,
        "tokens": 100,
        "values": {"loss": loss},
        "seconds": 2.0,
        "message": "",
        "details": {},
        "curve": [],
        "learning_rate": float(choices[RATE]) if RATE in choices else None,
    }
    return Row(**(fields | facts))


def evidence_of(rows: Sequence[Row], rates: Sequence[float] = ()) -> Evidence:
    plan = {"fixed": {"rungs": {"eta": 2}}, "config": {"learning_rates": list(rates)}, "rung_tokens": [50, 200]}
    return Evidence(plan, {"loss": Direction.MINIMIZE}, rows)


def test_the_choice_that_decides_is_the_most_important() -> None:
    source = random.Random(0)
    rows: list[Row] = []
    for number in range(60):
        kind, rate = source.choice(("good", "bad")), source.uniform(0.1, 1.0)
        choices = {"rule/kind": kind, "rule/rate": rate} | (
            {"rule/kind=good/size": number % 3} if kind == "good" else {}
        )
        rows.append(row(number, choices, (kind == "bad") + 0.01 * source.random()))
    shares = importances(evidence_of(rows), "loss")
    assert next(iter(shares)) == "rule/kind" and shares["rule/kind"] > 0.5
    assert sum(shares.values()) == pytest.approx(1.0)
    page = importance_section(evidence_of(rows))[0].html()
    assert "What mattered" in page and page.index("rule/kind") < page.index("rule/rate")
    assert importances(evidence_of(rows), "loss") == shares


def test_a_choice_that_some_trials_made_has_no_importance() -> None:
    """A few good trials at one value of a branch's number would else weigh more than all choices together."""
    rows: list[Row] = []
    for number in range(40):
        kind, rate = "ab"[number % 2], number / 40
        choices = {"rule/kind": kind, "rule/rate": rate} | (
            {"rule/kind=a/lam": 0.1 * (number % 8)} if kind == "a" else {}
        )
        rows.append(row(number, choices, abs(rate - 0.5)))
    assert list(importances(evidence_of(rows), "loss")) == ["rule/rate", "rule/kind"]


def test_few_or_equal_trials_have_no_importances() -> None:
    few = [row(i, {"rule/kind": "ab"[i % 2]}, float(i)) for i in range(7)]
    equal = [row(i, {"rule/kind": "ab"[i % 2]}, 1.0) for i in range(20)]
    alone = [row(i, {"rule/kind": "a"}, float(i)) for i in range(20)]
    assert [importances(evidence_of(rows), "loss") for rows in (few, equal, alone)] == [{}, {}, {}]
    assert importance_section(evidence_of(few)) == []


GRID = (0.001, 0.01, 0.1)


def grid(number: int, kind: str, losses: Sequence[float]) -> list[Row]:
    rates = ("0.001", "0.01", "0.1")
    return [row(number + i, {"rule/kind": kind, RATE: rates[i]}, loss) for i, loss in enumerate(losses)]


def test_a_best_rate_at_the_end_of_the_grid_is_told() -> None:
    rows = [*grid(0, "inside", (3.0, 1.0, 2.0)), *grid(3, "low", (1.5, 2.0, 3.0)), *grid(6, "high", (3.0, 2.0, 1.8))]
    curves = rate_curves(evidence_of(rows))
    assert [(curve.name, curve.at_edge, curve.best) for curve in curves] == [
        ("inside kind", "", 0.01),
        ("low kind", "lowest", 0.001),
        ("high kind", "highest", 0.1),
    ]
    assert curves[0].points == {"loss": [(0.001, 3.0), (0.01, 1.0), (0.1, 2.0)]}
    page = rate_section(evidence_of(rows, GRID))[0].html()
    assert "Of 3 structures 2 were best at an end of the rates tried" in page
    assert "low kind: 0.001, the lowest; high kind: 0.1, the highest" in page
    inside = rate_section(evidence_of(rows[:3], GRID))[0].html()
    assert "Learning rates" in inside and "at an end of the rates tried" not in inside


def test_a_rate_that_costs_a_share_much_is_told() -> None:
    """Ranks see no sizes: the rate that is best in two of three objectives may have lost the third."""
    ways = {"recall": Direction.MAXIMIZE, "overwrite": Direction.MAXIMIZE, "loss": Direction.MINIMIZE}
    rows = grid(0, "kind", (2.0, 1.9, 1.8))
    values = [(0.996, 0.99, 2.0), (1.0, 0.98, 1.9), (0.15, 0.995, 1.8)]
    rows = [replace(r, values=dict(zip(ways, v, strict=True))) for r, v in zip(rows, values, strict=True)]
    page = rate_section(replace(evidence_of(rows, GRID), objectives=ways))[0].html()
    assert (
        "on one seed: kind kind: recall 15.0 % at 0.1, 100.0 % at 0.01. They are judged at it, in finals too." in page
    )
    near = [replace(r, values={**r.values, "recall": 0.95 + r.values["recall"] / 100}) for r in rows]
    assert "They are judged at it" not in rate_section(replace(evidence_of(near, GRID), objectives=ways))[0].html()


def test_rates_that_were_met_by_chance_are_no_curve() -> None:
    assert rate_curves(evidence_of(grid(0, "low", (1.5, 2.0, 3.0)))) != []
    assert rate_section(evidence_of(grid(0, "low", (1.5, 2.0, 3.0)))) == []


def test_a_rate_that_failed_is_still_an_end_of_the_grid() -> None:
    rows = grid(0, "kind", (3.0, 1.0))
    rows.append(row(2, {"rule/kind": "kind", RATE: "0.1"}, 9.0, Outcome.UNSTABLE))
    assert [curve.at_edge for curve in rate_curves(evidence_of(rows))] == [""]
    assert rate_curves(evidence_of(grid(0, "kind", (3.0,)))) == []


def test_a_search_without_a_grid_is_warned_about() -> None:
    rated = evidence_of(grid(0, "kind", (3.0, 1.0)))
    assert "Give learning_rates, a grid for all" in warnings(rated)[0]
    assert warnings(replace(rated, plan={"config": {"learning_rates": [0.001, 0.01]}})) == []
    assert warnings(evidence_of([row(0, {"rule/kind": "a"}, 1.0)])) == []


def decision(trial: int, loss: float, rank: int, reason: str = "a free pass", *, stop: bool = False) -> Decision:
    return Decision(trial, 0, 10, {"loss": loss}, rank, 5, rank / 4, stop, reason)


@pytest.mark.parametrize(("ends", "correlation", "wronged"), [((1, 2, 3, 4, 5), 1.0, 0), ((5, 4, 3, 2, 1), -1.0, 2)])
def test_free_passes_show_what_a_rung_is_worth(ends: Sequence[float], correlation: float, wronged: int) -> None:
    rows = [row(i, {}, float(end)) for i, end in enumerate(ends)]
    decisions = [decision(i, float(i), i) for i in range(5)]
    decisions.append(decision(9, 7.0, 5, "not among the best 2 of 6", stop=True))
    (worth,) = rung_worth(evidence_of(rows), decisions)
    assert (worth.arrived, worth.stopped, worth.passes) == (6, 1, 5)
    assert worth.correlation == pytest.approx(correlation) and worth.wronged == wronged
    warned = "this rung is too early" in rung_section(evidence_of(rows), decisions)[0].html()
    assert warned == (correlation < 0.5)


def test_too_few_free_passes_say_nothing() -> None:
    rows = [row(i, {}, float(i)) for i in range(2)]
    (worth,) = rung_worth(evidence_of(rows), [decision(i, float(i), i) for i in range(2)])
    assert worth.correlation is None and worth.passes == 2
    assert rung_section(evidence_of(rows), []) == []


def test_time_that_trials_shared_counts_once_and_repeats_are_no_trials() -> None:
    spans = [[[0.0, 2.0], [3.0, 4.0]], [[1.0, 3.5]], [[9.0, 10.0]]]
    rows = [row(i, {}, 1.0, details={"group": {"spans": each}}) for i, each in enumerate(spans)]
    repeat = row(3, {}, 1.0, Outcome.DUPLICATE, seconds=0.0, tokens=0)
    (cost,) = costs(evidence_of([*rows, repeat]))
    assert (cost.trials, cost.seconds, cost.wall) == (3, 6.0, 5.0)
    curve = [Measurement(1, tokens, tokens / 10, {}, tokens / 5, 20.0 + tokens) for tokens in (5, 10)]
    (alone,) = costs(evidence_of([*rows, row(4, {}, 1.0, curve=curve)]))
    assert alone.wall == 5.0 + 2.0
    again = row(5, {}, 1.0, attempt=2, details=rows[0].details)
    for unknown in (row(5, {}, 1.0), again):
        assert costs(evidence_of([*rows, unknown]))[0].wall is None


def test_samplers_are_compared_at_equal_device_time() -> None:
    rows = [
        row(0, {}, 5.0, origin="baseline:gdn", sampler="enqueued"),
        row(1, {}, 3.0, sampler="random"),
        row(2, {}, 9.0, Outcome.STOPPED, sampler="tpe"),
        row(3, {}, 2.0, sampler="tpe"),
        row(4, {}, 1.0, sampler="enqueued", leader=3),
        row(5, {}, 4.0, sampler="random"),
    ]
    guided, control = sorted(arms(evidence_of(rows)), key=lambda arm: arm.sampler != "tpe")
    assert (guided.trials, guided.seconds, guided.course) == (3, 6.0, [(4.0, 2.0), (6.0, 1.0)])
    assert (control.trials, control.course) == (2, [(2.0, 3.0), (4.0, 3.0)])
    assert (guided.best_by(3.9), guided.best_by(4.0), control.best_by(9.0)) == (None, 2.0, 3.0)
    page = search_course(evidence_of(rows))[0].html()
    assert "At 4 s each: random 3.000, tpe 2.000. The search was ahead of chance." in page
    slow = [replace(r, seconds=9.0) if r.sampler == "tpe" else r for r in rows]
    assert "ahead of chance" not in search_course(evidence_of(slow))[0].html()


def test_costs_add_up() -> None:
    rows = [
        row(0, {}, 1.0, origin="baseline:gdn"),
        row(1, {}, 1.0),
        row(2, {}, 1.0, Outcome.STOPPED),
        row(3, {}, 1.0, Outcome.UNSTABLE, details={"gpu": "H200"}),
    ]
    found = {cost.what: cost for cost in costs(evidence_of(rows))}
    assert list(found) == ["baselines", "proposals", "stopped proposals", "failed proposals", "all"]
    assert (found["all"].seconds, found["all"].tokens, found["all"].devices) == (8.0, 400, "CPU, H200")
    assert found["failed proposals"].trials == 1
