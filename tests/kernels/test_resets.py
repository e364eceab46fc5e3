"""A decay of 0, as a log decay of -inf or far below, empties the memory and disturbs nothing after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from archsearch.dsl import Kind, Rule, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.kernels.conformance import Inputs, Shape, draw
from archsearch.kernels.conformance.setting import relative_error
from archsearch.kernels.dispatch import compile
from archsearch.kernels.operands import strongest
from archsearch.lowering import lower
from archsearch.mixers.zoo import rules

SHAPE = Shape(batch=1, tokens=35, heads=1, value_heads=2, key_dim=16, value_dim=16)
DECAYED = [name for name in rules if any(o.kind is Kind.LOG_DECAY for o in rules[name].operands.values())]
FIXED = Rule(
    "fixed",
    decay(-1e9),
    delta_write(key("k"), value("v"), strength=gate("beta")),
    decay(log_decay("g")),
    read(query("q")),
)


def inputs(rule: Rule, log: float, device: torch.device) -> Inputs:
    """Every seventh token resets every head, every fifth one half of what decays."""
    drawn = draw(lower(rule), SHAPE, dtype=torch.float32, device=device)
    logs = [name for name, operand in rule.operands.items() if operand.kind is Kind.LOG_DECAY]
    for name in logs:
        drawn.tensors[name][:, ::7] = log
        drawn.tensors[name][:, ::5, ..., ::2] = log
    return drawn


def outcome(rule: Rule, backend: Any, given: Inputs) -> list[torch.Tensor]:
    """Output, state and every gradient."""
    signs = {operand.name for operand in rule.operands.values() if operand.kind is Kind.SIGN}
    leaves = {name: x.clone().requires_grad_(name not in signs) for name, x in given.tensors.items()}
    state = given.initial_state.clone().requires_grad_()
    found = compile(rule, backend, 16)(initial_state=state, scale=None, cu_seqlens=None, **leaves)
    loss = (found.output * given.output_slope).sum() + (found.state * given.state_slope).sum()
    wanted = [leaf for leaf in (*leaves.values(), state) if leaf.requires_grad]
    return [found.output, found.state, *torch.autograd.grad(loss, wanted)]


def agrees(rule: Rule, backend: Any, log: float, device: torch.device) -> None:
    given = inputs(rule, log, device)
    for found, expected in zip(outcome(rule, backend, given), outcome(rule, "reference", given), strict=True):
        assert relative_error(found, expected) < 1e-4


@pytest.mark.parametrize("log", [-float("inf"), -1e30, -1e5])
@pytest.mark.parametrize("name", DECAYED)
def test_chunkwise_resets_as_the_token_loop_does(name: str, log: float) -> None:
    agrees(rules[name], "torch", log, torch.device("cpu"))


def test_a_fixed_reset_leaves_the_other_decays_exact() -> None:
    agrees(FIXED, "torch", -0.5, torch.device("cpu"))


@pytest.mark.parametrize("rule", [rules["gated_delta_net"], rules["kda"], FIXED], ids=lambda rule: rule.name)
def test_kernels_reset_as_the_token_loop_does(rule: Rule, interpreted: torch.device) -> None:
    agrees(rule, "triton", -float("inf"), interpreted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_strongest_decay_is_the_first_to_be_zero(dtype: torch.dtype) -> None:
    least = strongest(dtype)
    assert torch.tensor(least, dtype=dtype).exp() == 0.0
    assert torch.tensor(least + 2.0, dtype=dtype).exp() > 0.0
