"""What a call gives beside its rule's numbers (mixers/test_papers has those): scale, states, dtypes, widths."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from archsearch.dsl import Rule, decay, delta_write, erase, gate, key, log_decay, query, read, value
from archsearch.kernels.conformance import Shape, draw
from archsearch.kernels.conformance.setting import relative_error
from archsearch.kernels.dispatch import compile
from archsearch.lowering import lower
from archsearch.mixers.zoo import rules

SHAPE = Shape(batch=2, tokens=9, heads=2, value_heads=4, key_dim=5, value_dim=3)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_a_call_may_set_the_scale(backend: Any) -> None:
    inputs = draw(lower(rules["q_delta"]), SHAPE)
    compiled = compile(rules["q_delta"], backend)
    plain = compiled(initial_state=None, scale=1.0, **inputs.tensors)
    scaled = compiled(initial_state=None, scale=3.0, **inputs.tensors)
    assert relative_error(scaled.output, 3 * plain.output) < 1e-12
    assert torch.equal(scaled.state, plain.state)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_no_initial_state_is_a_state_of_zeros(backend: Any) -> None:
    inputs = draw(lower(rules["eda"]), SHAPE)
    compiled = compile(rules["eda"], backend)
    left_out = compiled(scale=None, **inputs.tensors)
    zeros = compiled(initial_state=torch.zeros_like(inputs.initial_state), scale=None, **inputs.tensors)
    assert torch.equal(left_out.output, zeros.output)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_outputs_have_the_dtype_of_values_and_states_are_wide(dtype: torch.dtype) -> None:
    inputs = draw(lower(rules["kda"]), SHAPE, dtype=dtype)
    for backend in ("reference", "torch"):
        found = compile(rules["kda"], backend)(scale=None, **inputs.tensors)
        assert found.output.dtype == dtype
        assert found.state.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_a_rule_without_values_takes_its_width_from_the_state() -> None:
    forget = Rule("forget", decay(log_decay("g")), erase(key("e")), read(query("q")))
    inputs = draw(lower(forget), SHAPE)
    for backend in ("reference", "torch"):
        found = compile(forget, backend)(initial_state=inputs.initial_state, scale=None, **inputs.tensors)
        assert found.output.shape == (SHAPE.batch, SHAPE.tokens, SHAPE.value_heads, SHAPE.value_dim)


def test_a_gate_may_be_called_like_a_sign() -> None:
    """Padding gives signs a 1; what only ends in `_sign` is padded with 0 as any other operand."""
    signed = log_decay("g", per="channel", signed=True)
    write = delta_write(key("k"), value("v"), strength=gate("odd_sign"))
    rule = Rule("odd", decay(signed), write, read(query("q")))
    inputs = draw(lower(rule), SHAPE)
    expected, found = (compile(rule, backend, 4)(scale=None, **inputs.tensors) for backend in ("reference", "torch"))
    zeroed = {**inputs.tensors, "odd_sign": torch.zeros_like(inputs.tensors["odd_sign"])}
    assert relative_error(found.state, expected.state) < 1e-12
    nothing = compile(rule, "torch", 4)(scale=None, **zeroed)
    assert not nothing.output.any()
