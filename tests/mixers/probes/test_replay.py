"""The loop that a probe watches is the token loop; a rule comes apart into what its quantities are of."""

from __future__ import annotations

import json

import pytest
import torch
from probed import LONG, ODD, V, k, operands, probed, q, v

from archsearch.dsl import Rule, delta_write, read, write
from archsearch.kernels.dispatch import compile
from archsearch.lowering import lower
from archsearch.lowering.normal_form import text
from archsearch.mixers.probes.anatomy import level, parts_of
from archsearch.mixers.probes.probe import probe_operands
from archsearch.mixers.probes.quantities import LeftOut, Name
from archsearch.mixers.probes.replay import prepared, replay
from archsearch.mixers.zoo import rules


@pytest.mark.parametrize("rule", LONG, ids=lambda rule: rule.name)
def test_the_watched_loop_is_the_token_loop_and_its_changes_add_up(rule: Rule) -> None:
    form, tensors = lower(rule), operands(rule)
    moments = list(replay(form, prepared(form, tensors)))
    whole = compile(rule, backend="reference")(**tensors, initial_state=None, scale=None, cu_seqlens=None)
    torch.testing.assert_close(moments[-1].after, whole.state[..., :V], rtol=1e-12, atol=1e-12)
    for moment in moments:
        changes = [change for step in moment.steps for change in step.changes().values()]
        torch.testing.assert_close(moment.before + sum(changes), moment.after, rtol=1e-10, atol=1e-12)


def test_rows_come_apart_into_strength_residual_and_target() -> None:
    parts = {part.label: part for part in parts_of(lower(ODD))}
    assert list(parts) == ["e (row 0)", "k - 0.5 e", "q", "e (row 3)", "k"]
    kinds = {label: (part.erases, part.delta, part.writes) for label, part in parts.items()}
    assert kinds["e (row 0)"] == kinds["q"] == (True, False, False)
    assert kinds["k - 0.5 e"] == kinds["k"] == (False, True, True)
    assert kinds["e (row 3)"] == (False, False, True)
    joint = parts["k - 0.5 e"]
    assert (text(joint.residual), text(joint.target)) == ("b k", "w v")
    assert [operand.name for operand in joint.strength.gates] == ["beta"]
    x = operands(ODD)
    torch.testing.assert_close(level(joint, x), x["beta"] * x["b"].mean(-1))
    torch.testing.assert_close(level(parts["e (row 0)"], x), 0.5 * x["gamma"])


def test_a_rule_without_a_part_leaves_its_quantities_out_by_name() -> None:
    def left_out(name: str) -> set[Name]:
        return {each.name for each in probed(rules[name], operands(rules[name])).left_out}

    recalls = {Name.CONTRACTION, Name.DRIFT, Name.GATES, Name.COLLATERAL}
    assert left_out("linear") == {*recalls, Name.MEMORY}
    assert left_out("gla") == recalls
    assert left_out("delta_net") == {Name.GATES, Name.COLLATERAL, Name.MEMORY}
    assert left_out("q_delta") == {Name.COLLATERAL}
    assert left_out("eda") == set()
    found = probe_operands(lower(rules["linear"]), operands(rules["linear"]))
    reasons = {each.name: each.reason for each in found if isinstance(each, LeftOut)}
    assert reasons[Name.MEMORY] == "nothing decays"


def test_everything_is_told_of_every_rule_in_numbers_that_json_holds() -> None:
    for rule in (ODD, Rule("unread", delta_write(k, v), read(q - q)), Rule("none", write(k - k, v), read(q))):
        layer = probed(rule, operands(rule))
        assert {each.name for each in layer.found} == set(Name)
        json.dumps(layer.as_json(), allow_nan=False)
