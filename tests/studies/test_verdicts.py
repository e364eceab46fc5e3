"""What is concluded of finals, from made-up rows: pairs by seed, the winner, the front, bands, rates."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from archsearch.report.tables import Table
from archsearch.studies.design.config import StudyConfig
from archsearch.studies.design.entrants import Entrant, Role, Seeds
from archsearch.studies.design.rates import RATE
from archsearch.studies.evidence import conclusions
from archsearch.studies.evidence.comparison import Word
from archsearch.studies.evidence.conclusions import conclude, tie_band
from archsearch.studies.evidence.finals import _ties
from archsearch.studies.evidence.pareto import places
from archsearch.studies.evidence.pool import AA_FOLDER, FIGURES_FILE
from archsearch.studies.evidence.rows import Evidence, Row
from archsearch.studies.evidence.winner import _of_entrants
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.report.rate_page import swept, swept_section
from archsearch.studies.tasks.direction import Direction
from archsearch.studies.tasks.registry import Tasks
from archsearch.studies.tasks.text import TextOptions


def row(entrant: str, seed: int, loss: float, cost: float, outcome: Outcome = Outcome.COMPLETE) -> Row:
    return Row(
        number=seed,
        origin=f"entrant:{entrant}, seed {seed}",
        sampler="enqueued",
        choices={},
        rule="",
        rule_hash="",
        variant_hash="",
        outcome=outcome,
        attempt=1,
        tokens=1,
        values={"loss": loss, "cost": cost},
        seconds=1.0,
        message="",
        details={},
        curve=[],
        seed=seed,
        entrant=entrant,
    )


def evidence_of(rows: list[Row]) -> Evidence:
    names = list(dict.fromkeys(str(row.entrant) for row in rows))
    roles = {name: Role.BASELINE if name == "base" else Role.FINALIST for name in names}
    plan = {
        "entrants": {name: {"hash": name, "role": roles[name].value, "trial": None, "scores": {}} for name in names},
        "fixed": {"against": "base", "seeds": list(range(6)), "ties": {"cost": 0.5}},
    }
    return Evidence(plan, {"loss": Direction.MINIMIZE, "cost": Direction.MINIMIZE}, rows)


NOISE = [0.1, -0.1, 0.05, -0.05, 0.0, 0.02]


def test_differences_are_paired_by_seed_however_large_the_seeds_own_effect() -> None:
    rows = [row("base", s, 10.0 * s, 1.0) for s in range(6)]
    rows += [row("better", s, 10.0 * s - 1 + NOISE[s], 1.1) for s in reversed(range(6))]
    concluded = conclude(evidence_of(rows))
    assert concluded is not None
    found = concluded.of("better")
    assert (found["loss"].word, found["cost"].word) == (Word.WIN, Word.TIE)
    assert found["loss"].difference.mean == pytest.approx(-1 + sum(NOISE) / 6)
    assert concluded.of("base") == {}
    placed = {place.name: place for place in places(evidence_of(rows), concluded)}
    assert placed["better"].on_front and placed["base"].on_front and placed["base"].beaten_by == ()


def test_the_winner_of_finals_wins_for_certain_where_one_does(tmp_path: Path) -> None:
    home = StudyDirectory(tmp_path)
    rows = [row("base", s, 5.0 + NOISE[s], 1.0) for s in range(6)]
    lucky = [row("lucky", s, 4.7 + 3 * NOISE[s] * (-1) ** s, 0.9) for s in range(6)]
    better = [row("better", s, 4.95 + NOISE[s] - s / 1000, 1.0) for s in range(6)]
    dear = [row("dear", s, 4.0 + NOISE[s], 9.0) for s in range(6)]

    def said(*rows: Row) -> tuple[str | None, str]:
        evidence = evidence_of(list(rows))
        concluded = conclude(evidence)
        assert concluded is not None
        winner = _of_entrants(home, evidence, concluded)
        assert winner is not None
        return winner.row.entrant, winner.verdict

    fresh = "winner of the finals on 6 fresh seeds"
    assert said(*rows, *lucky, *better, *dear) == (
        "better",
        f"W{fresh[1:]}: better (win in loss, tie in cost, against base)",
    )
    assert said(*rows, *lucky)[0] == "lucky" and said(*rows, *lucky)[1].startswith(f"No clear {fresh}; the best by its")
    worse = [row("worse", s, 9.0 + NOISE[s], 1.0) for s in range(6)]
    assert said(*rows, *worse) == ("base", f"No clear {fresh}; the best by its means: base (the baseline)")


def test_the_front_says_who_is_beaten_for_certain() -> None:
    rows = [row("base", s, 5.0 + NOISE[s], 1.0) for s in range(6)]
    rows += [row("better", s, 4.0 + NOISE[s] / 2, 1.0) for s in range(6)]
    rows += [row("lucky", s, 4.99 + 3 * NOISE[s] * (-1) ** s, 1.0) for s in range(6)]
    evidence = evidence_of(rows)
    placed = {place.name: place for place in places(evidence, conclude(evidence))}
    assert [name for name, place in placed.items() if place.on_front] == ["better"]
    assert placed["base"].beaten_by == ("better",) and placed["lucky"].beaten_by == ()
    assert placed["better"].row()["seeds"] == 6


def test_a_band_is_never_below_what_equal_rules_differ_by(tmp_path: Path) -> None:
    kept = tmp_path / AA_FOLDER / FIGURES_FILE
    kept.parent.mkdir()
    kept.write_text(json.dumps({"objectives": {"recall": {"half_width": 0.05}}}), encoding="utf-8")
    config = StudyConfig(
        "delta_family", Tasks(text=TextOptions()), tmp_path, ties={"recall": 0.01, "bits_per_byte": 0.02}
    )
    assert _ties(tmp_path, config) == {"recall": 0.05, "bits_per_byte": 0.02}
    config = replace(config, ties={"recall": 0.1})
    assert _ties(tmp_path, config) == {"recall": 0.1}


def test_a_number_that_all_seeds_share_wins_nothing() -> None:
    assert conclusions._measured_once("step_milliseconds") and not conclusions._measured_once("recall")


def test_a_failed_seed_stays_in_the_verdict() -> None:
    rows = [row("base", s, 5.0 + NOISE[s], 1.0) for s in range(7 - 1)] + [row("base", 6, 5.0, 1.0)]
    rows += [row("better", s, 4.0, 1.0) for s in range(6)] + [row("better", 6, 0.0, 0.0, Outcome.UNSTABLE)]
    concluded = conclude(evidence_of(rows))
    assert concluded is not None
    found = concluded.of("better")["loss"]
    assert found.word is Word.UNDECIDED and found.reason == "not every seed has a value: better, seed 6 unstable"


def test_entrants_at_several_rates_make_curves() -> None:
    rows: list[Row] = []
    for rate, loss in (("0.1", 1.0), ("0.01", 2.0), ("0.001", 4.0)):
        for s in range(6):
            one = row(f"base {rate}" if rate != "0.01" else "base", s, loss + NOISE[s], 1.0)
            choices = {"rule/decay": "scalar", RATE: rate, "seed": s}
            rows.append(replace(one, choices=choices, learning_rate=float(rate)))
    rows.append(replace(row("base 0.1", 6, 9.0, 1.0, Outcome.UNSTABLE), choices=rows[0].choices, learning_rate=0.1))
    concluded = conclude(evidence_of(rows))
    assert concluded is not None
    (curve,) = swept(concluded, {})
    assert (curve.name, [rate for rate, _ in curve.standings]) == ("scalar decay", [0.001, 0.01, 0.1])
    assert curve.best("loss", Direction.MINIMIZE) == (0.1, "highest")
    section = swept_section(evidence_of(rows), concluded, {})[0]
    assert "Loss is best at an end of the rates: scalar decay: 0.1, the highest." in section.html()
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert [r["failed"] for r in table.rows] == [0, 0, 1]


def test_unfinished_finals_are_undecided_by_count() -> None:
    rows = [row(name, s, 5.0 + s, 1.0) for s in range(3) for name in ("base", "better")]
    concluded = conclude(evidence_of(rows))
    assert concluded is not None
    assert concluded.of("better")["loss"].reason == "3 paired fresh seeds; a verdict needs 6"


def test_bands_are_those_given_else_by_kind() -> None:
    assert tie_band("recall", {}) == 0.01 and tie_band("bits_per_byte", {}) == 0.005
    assert tie_band("bits_per_byte", {"bits_per_byte": 0.02}) == 0.02 and tie_band("recall_loss", {}) == 0.0


def test_an_entrant_is_plain_data() -> None:
    assert Entrant().role is Role.FINALIST and set(Seeds(3).fresh).isdisjoint(Seeds(4).fresh)
