"""What is drawn for a rule keeps the rule itself in the range of every dtype."""

from __future__ import annotations

import pytest
import torch

from archsearch.dsl import Rule, delta_write, erase, key, query, read, simultaneous, value, write
from archsearch.kernels.conformance import Difficulty, Shape, draw, run_conformance
from archsearch.kernels.conformance.made_up import LONG, RULES
from archsearch.kernels.dispatch import compile
from archsearch.lowering import lower
from archsearch.mixers.zoo import rules

WIDE = Shape(batch=2, tokens=331, heads=1, value_heads=1, key_dim=60, value_dim=20)
NAMED = {rule.name: rule for rule in (*LONG, *RULES, *rules.values())}
q, k, v, a, b = query("q"), key("k"), value("v"), key("a"), key("b")
WITHOUT_BOUND = Rule("without_bound", erase(a, strength=-1.0), write(k, v), read(q))


@pytest.mark.parametrize("difficulty", Difficulty)
@pytest.mark.parametrize("rule", NAMED.values(), ids=lambda rule: rule.name)
def test_no_named_rule_leaves_the_range_of_float16(rule: Rule, difficulty: Difficulty) -> None:
    inputs = draw(lower(rule), WIDE, difficulty=difficulty)
    found = compile(rule, "torch")(initial_state=inputs.initial_state, scale=None, **inputs.tensors)
    assert max(found.output.abs().max(), found.state.abs().max()) < 0.01 * torch.finfo(torch.float16).max


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_row_that_would_add_what_it_recalls_elsewhere_takes_away(sign: float) -> None:
    removal = delta_write(a, 0.0 * v, strength=-1.0, residual=sign * b, reads="previous")
    free = Rule("free", simultaneous(removal, write(k, v)), read(q))
    tensors = draw(lower(free), WIDE).tensors
    products = (tensors["a"] * tensors["b"]).sum(-1)
    if sign > 0:
        assert products.min() >= -1 and products.max() <= 0
    else:
        assert products.max() > 0.5, "drawn as any other address"


def test_a_verdict_says_that_the_rule_itself_leaves_the_range() -> None:
    verdict = run_conformance(WITHOUT_BOUND, "torch", dtype=torch.float16, properties=["chunk_matches_token_loop"])[0]
    assert not verdict.passed
    assert "; the token loop itself reaches " in verdict.where and verdict.where.endswith(
        "which torch.float16 cannot hold"
    )


@pytest.mark.parametrize("rule", ["mlstm", "gated_delta_net"])
def test_a_state_has_the_column_of_a_normaliser(rule: str) -> None:
    form = lower(rules[rule])
    assert WIDE.state_of(form) == draw(form, WIDE).initial_state.shape == (2, 1, 60, 20 + (rule == "mlstm"))
