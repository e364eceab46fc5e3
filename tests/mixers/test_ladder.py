"""Rows of the ladder that stand on the layer: paths that never learn are named, and a rule's cost is told."""

from __future__ import annotations

import pytest
import torch

from archsearch.dsl import Rule, delta_write, gate, key, query, query_feedback, read, value, write
from archsearch.kernels.ladder import Status, climb
from archsearch.mixers import ladder
from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.zoo import rules

q, k, v = query("q"), key("k"), value("v")


@pytest.mark.parametrize("rule", rules.values(), ids=lambda rule: rule.name)
def test_every_path_of_the_zoo_learns(rule: Rule) -> None:
    verdict = ladder.live_paths(rule, "torch")
    assert verdict.passed, verdict


@pytest.mark.parametrize("rule", rules.values(), ids=lambda rule: rule.name)
def test_no_rule_of_the_zoo_costs_more_than_it_may(rule: Rule) -> None:
    assert all(verdict.passed for verdict in ladder.costs(rule))


def test_the_control_costs_once_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [verdict.error for verdict in ladder.costs(rules["gated_delta_net"])] == [1.0, 1.0, 1.0]


def test_a_rule_of_many_steps_costs_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    steps = [delta_write(key(f"k{i}"), value(f"v{i}"), strength=gate(f"beta{i}")) for i in range(8)]
    verdicts = ladder.costs(Rule("eight", *steps, read(q)))
    assert [verdict.passed for verdict in verdicts] == [False, False, True]


def test_a_gate_that_nothing_feels_never_learns() -> None:
    idle = delta_write(k, v, strength=gate("beta"), residual=query_feedback(q, 0.0 * gate("lam")))
    verdict = ladder.live_paths(Rule("idle", idle, read(q)), "torch")
    assert (verdict.error, verdict.where) == (1.0, "never learns: projection of lam")


def test_a_parameter_out_of_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spare(Mixer):
        def __init__(self, *given: object, **named: object) -> None:
            super().__init__(*given, **named)  # pyright: ignore[reportArgumentType]
            self.spare = torch.nn.Parameter(torch.zeros(3))

    monkeypatch.setattr(ladder, "Mixer", Spare)
    verdict = ladder.live_paths(rules["linear"], "torch")
    assert (verdict.error, verdict.where) == (1.0, "never learns: spare")


def test_random_numbers_go_on_as_if_nothing_had_been_drawn() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    ladder.live_paths(rules["linear"], "torch")
    assert torch.equal(torch.rand(2), expected)


def test_rows_are_climbed_in_their_order() -> None:
    rule = Rule("plain", write(k, v), read(q))
    lines = list(climb(rule, "torch", ladder.checks(rule, "torch")))
    assert [line.row for line in lines] == [1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 11]
    assert {line.row: line.status for line in lines}[7] is Status.PASSED
