"""Names of trials tell them apart, and a trial without a rank says why it has none."""

import pytest

from archsearch.studies.design.rates import RATE
from archsearch.studies.evidence.naming import choice_words, differing, name_words
from archsearch.studies.evidence.rows import Evidence, Row
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.report.study_page import ranking_table
from archsearch.studies.tasks.direction import Direction

WIDE = {"rule/decay": "scalar", "layer/head_dim": "64", "model/layers": 2, "layer/operands/e/rank": "8", RATE: 0.1}
DEEP = {"rule/decay": "scalar", "layer/head_dim": "64", "model/layers": 4, "layer/operands/e/rank": "16", RATE: 0.2}


def test_a_name_holds_what_differs_and_nothing_else() -> None:
    paths = differing([WIDE, DEEP])
    assert paths == ("model/layers", "layer/operands/e/rank")
    assert name_words(WIDE, paths) == "scalar decay, layers 2, e rank 8"
    assert name_words(DEEP, paths) == "scalar decay, layers 4, e rank 16"
    assert name_words(WIDE, differing([WIDE, WIDE])) == "scalar decay"


def test_choices_of_training_tell_trials_of_one_rule_apart() -> None:
    every = [{"training/weight_decay": value, "seed": i} for i, value in enumerate((1e-4, 0.1))]
    assert [name_words(choices, differing(every)) for choices in every] == ["weight decay 0.0001", "weight decay 0.10"]
    assert name_words({}, ()) == choice_words({}) == "plain"


def test_a_choice_in_a_branch_is_told_where_it_was_made() -> None:
    every = [{"model/pattern": "hybrid", "model/pattern=hybrid/window": 64}, {"model/pattern": "rule"}]
    assert [name_words(choices, differing(every)) for choices in every] == ["pattern hybrid", "pattern rule"]
    every.append({"model/pattern": "hybrid", "model/pattern=hybrid/window": 128})
    assert name_words(every[2], differing(every)) == "pattern hybrid, window 128"


def row(number: int, outcome: Outcome | None, *, kind: str = "a", loss: float = 1.0, tokens: int = 200) -> Row:
    return Row(
        number=number,
        origin="proposal",
        sampler="tpe",
        choices={"rule/kind": kind, RATE: str(10.0**-number)},
        rule="",
        rule_hash="",
        variant_hash=str(number),
        outcome=outcome,
        attempt=1,
        tokens=tokens,
        values={"loss": loss},
        seconds=1.0,
        message="RuntimeError: lost" if outcome is Outcome.UNSTABLE else "",
        details={},
        curve=[],
    )


@pytest.mark.parametrize(
    ("outcome", "tokens", "reason"),
    [
        (Outcome.COMPLETE, 200, "better at the rate of trial 0"),
        (Outcome.STOPPED, 100, "stopped at 50%: others were better"),
        (Outcome.UNSTABLE, 50, "RuntimeError: lost"),
        (Outcome.TIMEOUT, 50, "timeout"),
        (None, 50, "has not ended, 25% done"),
    ],
)
def test_a_row_without_a_rank_gives_its_reason(outcome: Outcome | None, tokens: int, reason: str) -> None:
    rows = [row(0, Outcome.COMPLETE, loss=1.0), row(1, outcome, loss=2.0, tokens=tokens)]
    table = ranking_table(Evidence({"rung_tokens": [100, 200]}, {"loss": Direction.MINIMIZE}, rows))
    assert [line.get("rank") for line in table.rows] == [1, None]
    assert [line.get("reason") for line in table.rows] == [None, reason]
