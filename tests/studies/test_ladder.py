"""The row of the ladder that needs training: a rule that learns passes it, one that cannot does not."""

from __future__ import annotations

import pytest

from archsearch.mixers.zoo import rules
from archsearch.studies.training import ladder


@pytest.mark.parametrize("name", ["gated_delta_net", "q_delta"])
def test_the_loss_of_a_sound_rule_falls(name: str) -> None:
    verdict = ladder.loss_falls(rules[name], "torch")
    assert verdict.passed and 0 < verdict.error < 0.5
    assert verdict.where.startswith("of the first loss, after ") and verdict.where.endswith(" steps on 8 x 256 bytes")


def test_a_loss_that_stays_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "STEPS", 3)
    monkeypatch.setattr(ladder, "LEARNING_RATE", 1e-9)
    verdict = ladder.loss_falls(rules["linear"], "torch")
    assert not verdict.passed and verdict.error == pytest.approx(1.0, abs=1e-3)


def test_a_loss_that_is_no_number_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "_losses", lambda model, tokens: iter([2.0, float("nan"), 0.0]))
    verdict = ladder.loss_falls(rules["linear"], "torch")
    assert not verdict.passed and "after 1 steps" in verdict.where


def test_the_row_is_the_tenth() -> None:
    (check,) = ladder.checks(rules["linear"], "torch")
    assert (check.number, check.title) == (10, "the loss falls")
