"""The page of a study as its reader has it: every part that was promised is there, and says what the files say."""

import html
import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import stdev
from typing import Any

import pytest

from archsearch.mixers.zoo import rules
from archsearch.report.page import Page
from archsearch.studies.design.rates import RATE
from archsearch.studies.evidence.rows import Evidence, Row
from archsearch.studies.files.decisions import Decision
from archsearch.studies.files.directory import Measurement
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.report.study_page import build_page
from archsearch.studies.tasks.direction import Direction

BUDGET = {"parameters": None, "flops_per_token": None, "state_bytes": "gated_delta_net", "tolerance": 0.02}
ZOO = ("gated_delta_net", "kda", "q_delta", "eda", "delta_net")


def row(number: int, recall: float, bits: float, outcome: Outcome = Outcome.COMPLETE, **facts: Any) -> Row:
    name = ZOO[number % len(ZOO)]
    values = {"recall": recall, "bits_per_byte": bits}
    fields: dict[str, Any] = {
        "number": number,
        "origin": f"baseline:{name}" if number < 2 else "proposal",
        "sampler": "enqueued" if number < 2 else ("random" if number % 3 == 0 else "tpe"),
        "choices": {"rule/kind": name, "rule/rate": 0.1 + number / 20},
        "rule": str(rules[name]),
        "rule_hash": rules[name].hash,
        "variant_hash": str(number),
        "outcome": outcome,
        "attempt": 1,
        "tokens": 1000,
        "values": values,
        "seconds": 30.0,
        "message": "",
        "details": {"parameters": 100 + number, "flops_per_token": 200, "state_bytes": 64},
        "curve": [
            Measurement(
                1,
                tokens,
                tokens / 1000,
                {"recall": recall * tokens / 1000, "bits_per_byte": bits + 1 - tokens / 1000},
                1.0,
            )
            for tokens in (500, 1000)
        ],
        "model": {"width": 32, "mlp_ratio": 0.0},
        "budget": BUDGET,
    }
    return Row(**(fields | facts))


def plan(**changes: Any) -> dict[str, Any]:
    tasks = {
        "mqar": {"objective": "recall", "baselines": {"chance": 0.1}, "description": "eight pairs", "tokens": 600},
        "text": {"objective": "bits_per_byte", "baselines": {"4-gram": 2.5}, "description": "plays", "tokens": 400},
    }
    return {
        "tasks": {name: {**task, "data_hash": "abcdef0123456789abcd"} for name, task in tasks.items()},
        "baselines": {"gated_delta_net": {}, "kda": {}},
        "fixed": {"seed": 0, "rungs": {"eta": 2}},
        "rung_tokens": [500, 1000],
        "config": {"finalists": 2, "resources": {"concurrent": 2}},
        "created": "2026-01-01",
        "versions": {"torch": "2"},
        "space": "Space(kind)",
        **changes,
    }


WAYS = {"recall": Direction.MAXIMIZE, "bits_per_byte": Direction.MINIMIZE}


def search() -> tuple[Evidence, list[Decision]]:
    rows = [row(n, 0.2 + 0.05 * n, 3.0 + 0.02 * n) for n in range(10)]
    rows.append(row(10, 0.1, 4.0, Outcome.STOPPED, tokens=500))
    message = "Unstable: loss must be finite; got nan by step 7"
    rows.append(row(11, 0.1, 4.0, Outcome.UNSTABLE, message=message, details={"place": ["run.py:1"]}, attempt=3))
    rows.append(row(12, 0.3, 3.5, attempt=2))
    decisions = [
        Decision(n, 0, 500, {"recall": 0.1 * n, "bits_per_byte": 3.0}, n % 3, 5, 0.5, n == 10, "a free pass")
        for n in range(11)
    ]
    return Evidence(plan(), WAYS, rows), decisions


@pytest.fixture(scope="module")
def page() -> Page:
    evidence, decisions = search()
    return build_page(evidence, decisions, "runs/x", aa=["A/A: a line."])


def part(page: Page, title: str) -> str:
    """A section as words, its tags taken out, except that drawings keep theirs."""
    (section,) = [section for section in page.sections if section.title == title]
    return html.unescape(section.html())


def words(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def test_every_part_of_a_search_is_there_once(page: Page) -> None:
    assert [section.title for section in page.sections] == [
        "Outcome",
        "The winning rule",
        "Ranking",
        "Matched budgets",
        "Trade-off",
        "Speed and quality",
        "Learning curves",
        "The search",
        "What mattered",
        "Rungs",
        "The rules",
        "Cost",
        "What failed",
        "What was asked",
    ]
    names = [table.name for table in page.tables]
    assert len(set(names)) == len(names)


def test_the_ranking_is_by_front_and_says_why_others_have_none(page: Page) -> None:
    (ranking,) = [table for table in page.tables if table.name == "ranking"]
    first = ranking.rows[0]
    assert (first["trial"], first["front"], first["recall"], first["bits_per_byte"]) == (9, 1, 0.65, 3.18)
    ranks = [line.get("rank") for line in ranking.rows]
    assert ranks == [*range(1, 12), None, None, None, None]
    reasons = {line.get("trial"): line.get("reason") for line in ranking.rows}
    assert reasons[10] == "stopped at 50%: others were better"
    assert reasons[11] == "Unstable: loss must be finite; got nan by step 7"
    assert "one seed" in words(part(page, "Ranking")).lower()


def test_what_is_not_learned_is_said_to_rank_nobody(page: Page) -> None:
    outcome = words(part(page, "Outcome"))
    assert "In bits per byte no trial beats 4-gram: 3.000 against 2.500." in outcome and "In recall" not in outcome
    assert "65.0 % recall of the winner" in outcome and "25.0 % recall of kda, the best baseline" in outcome
    assert "11 complete, 1 stopped, 1 unstable" in outcome and "A/A: a line." in outcome


def test_the_front_is_drawn_with_its_baselines(page: Page) -> None:
    drawing = part(page, "Trade-off")
    assert drawing.count("<circle") == 11 and ">kda</text>" in drawing and "winner (trial 9)" in drawing
    assert "trial 12: " in drawing and "trial 10: " not in drawing


def test_curves_of_all_trials_are_drawn_with_trivial_predictors(page: Page) -> None:
    curves = part(page, "Learning curves")
    assert curves.count("<svg") == 2
    assert curves.count("<polyline") + curves.count("<path") >= 2 * 13
    assert ">chance</text>" in curves and ">4-gram</text>" in curves and ">gated_delta_net</text>" in curves


def test_importances_of_all_choices_sum_to_one(page: Page) -> None:
    (table,) = [table for table in page.tables if table.name == "importances"]
    assert {line["choice"] for line in table.rows} == {"rule/kind", "rule/rate"}
    assert sum(float(str(line["recall"])) for line in table.rows) == pytest.approx(1.0)


def test_equations_stand_under_the_names_of_those_who_took_part(page: Page) -> None:
    equations = part(page, "The rules")
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", equations)
    assert captions[:2] == ["kda.", "gated_delta_net."] and len(captions) == 5
    assert "Sₜ = S′ + β k (v − S′ᵀ k)ᵀ" in words(equations)
    assert any(caption.endswith("It is eda of the zoo.") for caption in captions)


def test_failures_have_a_class_a_culprit_an_example_and_a_log(page: Page) -> None:
    (table,) = [table for table in page.tables if table.name == "failures"]
    assert table.rows == [
        {
            "outcome": "unstable",
            "trials": 1,
            "blamed": "the rule",
            "example": "trial 11: kda kind, 0.65 rate",
            "message": "Unstable: loss must be finite; got nan by step 7",
            "log": "trials/00011/log-3.txt",
        }
    ]
    assert "1 trial was lost by the machine, or interrupted" in words(part(page, "What failed"))


def test_that_nothing_failed_is_said() -> None:
    evidence, decisions = search()
    calm = Evidence(evidence.plan, WAYS, evidence.rows[:10])
    text = words(part(build_page(calm, decisions, "runs/x"), "What failed"))
    assert text.strip() == "What failed No trial failed. To be stopped at a rung is no failure."


def test_the_cost_adds_up_and_the_commands_name_the_study(page: Page) -> None:
    (table,) = [table for table in page.tables if table.name == "cost"]
    everything = table.rows[-1]
    assert (everything["what"], everything["trials"], everything["seconds"]) == ("all", 13, 390.0)
    assert everything["tokens"] == 12_500
    asked = words(part(page, "What was asked"))
    assert (
        "archsearch study report runs/x" in asked
        and "Space(kind)" in asked
        and "data of text abcdef0123456789" in asked
    )


def finals(values: Sequence[tuple[str, Sequence[float]]], **changes: Any) -> Evidence:
    seeds = list(range(1, 1 + len(values[0][1])))
    entrants = {
        name: {"role": "baseline" if name in ZOO else "finalist", "trial": 1, "scores": {"recall": 0.9}, "hash": name}
        for name, _ in values
    }
    rows = [
        row(2 + 20 * i + seed, value, 3.0, seed=seed, entrant=name, origin=f"entrant:{name}, seed {seed}")
        for i, (name, each) in enumerate(values)
        for seed, value in zip(seeds, each, strict=True)
    ]
    fixed = {"seed": 0, "rungs": {"eta": 2}, "against": values[0][0], "seeds": seeds}
    return Evidence(plan(entrants=entrants, fixed=fixed, **changes), {"recall": Direction.MAXIMIZE}, rows)


BASE = (0.50, 0.52, 0.48, 0.51, 0.49, 0.50)
BETTER = tuple(value + 0.1 + 0.001 * i for i, value in enumerate(BASE))


def test_finals_rank_with_intervals_and_verdicts() -> None:
    found = finals([("gated_delta_net", BASE), ("x (trial 1)", BETTER)])
    page = build_page(found, [], "runs/x/finals")
    (table,) = [table for table in page.tables if table.name == "verdicts_recall"]
    first, second, chance = table.rows
    assert (first["entrant"], first["verdict"], second["verdict"]) == ("x (trial 1)", "win", "baseline")
    assert chance == {"entrant": "chance", "mean": 0.1, "role": "reference"}
    said = words(part(page, "Verdicts against gated_delta_net"))
    assert "Recall: x (trial 1) wins." in said
    leads = (
        "Winner of the finals on 6 fresh seeds: x (trial 1) (win in recall, against gated_delta_net). An export takes"
    )
    assert leads in said and leads not in words(build_page(replace(found, rows=found.rows[1:]), [], "runs/x").html())
    assert first["mean"] == pytest.approx(0.6025) and first["half"] == pytest.approx(
        2.5706 * stdev(BETTER) / 6**0.5, rel=1e-4
    )
    assert float(str(first["low"])) < float(str(first["difference"])) < float(str(first["high"]))
    titles = [section.title for section in page.sections]
    assert titles[:3] == ["Verdicts against gated_delta_net", "Search and finals", "Matched budgets"]
    assert "No A/A study is kept" in words(part(page, "Verdicts against gated_delta_net"))
    (budgets,) = [table for table in page.tables if table.name == "matched"]
    assert [line["is"] for line in budgets.rows] == ["reference", ""]


def test_seeds_of_two_kinds_are_told_and_no_share_leaves_its_ends() -> None:
    late = (1.0, 0.99, 1.0, 0.98, 1.0, 0.02)
    found = finals([("gated_delta_net", (0.99, 1.0, 0.98, 1.0, 0.99, 1.0)), ("x (trial 1)", late)])
    both = {"recall": Direction.MAXIMIZE, "bits_per_byte": Direction.MINIMIZE}
    page = build_page(replace(found, objectives=both), [], "runs/x/finals")
    said = words(part(page, "Verdicts against gated_delta_net"))
    assert "between the seeds of one entrant: x (trial 1) 2.0 % to 100.0 %, median 99.5 %. Some seeds learn" in said
    table, front = (next(t for t in page.tables if t.name == name) for name in ("verdicts_recall", "pareto"))
    assert table.rows[1]["each"] == "100.0 99.0 100.0 98.0 100.0 2.0"
    assert [line["recall_high"] for line in front.rows] == [1.0, 1.0]


def test_of_many_entrants_only_those_on_the_front_are_named_in_a_drawing() -> None:
    both = {"recall": Direction.MAXIMIZE, "bits_per_byte": Direction.MINIMIZE}
    for count, seen in ((14, True), (15, False)):
        found = finals([(f"entrant {i}", tuple(0.1 + 0.05 * i + value for value in BASE)) for i in range(count)])
        section = part(build_page(replace(found, objectives=both), [], "runs/x"), "Trade-off on fresh seeds")
        drawing = section.split("<table")[0]
        assert f">entrant {count - 1}</text>" in drawing and (">entrant 3</text>" in drawing) == seen


def test_more_mean_curves_than_colours_are_those_of_the_front() -> None:
    both = {"recall": Direction.MAXIMIZE, "bits_per_byte": Direction.MINIMIZE}
    for count, seen in ((8, True), (9, False)):
        found = finals([(f"entrant {i}", tuple(0.1 + 0.05 * i + value for value in BASE)) for i in range(count)])
        curves = part(build_page(replace(found, objectives=both), [], "runs/x"), "Learning curves")
        assert f">entrant {count - 1}</text>" in curves and (">entrant 3</text>" in curves) == seen
        assert ("Named: the means of those on the front" in curves) != seen
    assert "Named: the means" not in part(build_page(*search(), "runs/x"), "Learning curves")


@pytest.mark.parametrize(("count", "warned"), [(3, True), (10, False)])
def test_a_verdict_on_few_documents_is_said_to_be_of_these(count: int, warned: bool) -> None:
    found = finals([("gated_delta_net", BASE), ("x (trial 1)", BETTER)])
    kept = {"documents": {"mqar": [[f"16/{i}", 1, 0.5] for i in range(count)]}}
    rows = [replace(r, details={**r.details, **kept}) for r in found.rows]
    said = words(part(build_page(replace(found, rows=rows), [], "runs/x"), "Verdicts against gated_delta_net"))
    assert ("Recall is of 3 documents: that few" in said) == warned


def test_many_winners_are_counted_and_told_apart() -> None:
    names = ["x, y (trial 1)", "z (trial 2)", "w (trial 3)"]
    page = build_page(finals([("gated_delta_net", BASE), *((name, BETTER) for name in names)]), [], "runs/x/finals")
    said = words(part(page, "Verdicts against gated_delta_net"))
    assert "Recall: 3 win (x, y (trial 1); z (trial 2); w (trial 3))." in said


def test_verdicts_show_the_rate_that_each_entrant_came_with() -> None:
    found = finals([("gated_delta_net", BASE), ("x (trial 1)", BETTER)])
    rated = [replace(r, choices={**r.choices, RATE: "0.01"}, learning_rate=0.01 * r.number) for r in found.rows]
    page = build_page(replace(found, rows=rated), [], "runs/x/finals")
    (table,) = [table for table in page.tables if table.name == "verdicts_recall"]
    assert [line["rate"] for line in table.rows[:2]] == pytest.approx([0.23, 0.03])
    plain = build_page(found, [], "runs/x/finals").tables[0]
    assert "rate" not in [column.key for column in plain.columns]


def test_a_search_leads_with_the_verdicts_of_its_finals_and_states_each_table_once() -> None:
    evidence, decisions = search()
    ahead = finals([("gated_delta_net", BASE), ("x (trial 1)", BETTER)])
    page = build_page(evidence, decisions, "runs/x", finals=ahead)
    assert page.sections[0].title == "Verdicts against gated_delta_net"
    names = [table.name for table in page.tables]
    assert len(set(names)) == len(names) and "ranking" in names and "verdicts_recall" in names
