"""Expressions as tensors: addresses spread over the value heads, sums of gated operands formed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from archsearch.dsl import Expression, Operand
from archsearch.kernels.call import Call
from archsearch.lowering import NormalForm


def spread(form: NormalForm, call: Call) -> dict[str, Tensor]:
    """Every operand in the dtype of the state, addresses as [B, T, HV, K]."""
    group = call.value_heads // call.heads
    ready: dict[str, Tensor] = {}
    for operand in form.operands:
        tensor = call.tensors[operand.name].to(call.dtype)
        ready[operand.name] = tensor.repeat_interleave(group, dim=2) if operand.is_address and group > 1 else tensor
    return ready


def evaluate(expression: Expression, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """The sum of the terms [..., K or V]; None for the empty sum. Gates [...] scale whole vectors, channel gates [...,
    K or V] elementwise.
    """
    total: Tensor | None = None
    for term in expression:
        if term.vector is None:
            raise ValueError("an expression with a vector was expected")
        value = tensors[term.vector.name]
        for gate in term.gates:
            value = value * _factor(gate, tensors)
        if term.coefficient != 1.0:
            value = value * term.coefficient
        total = value if total is None else total + value
    return total


def log_decay(given: Operand | float, tensors: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """A decay point's log as [..., 1] or [..., K]; `like` is any operand [..., K] that shows the leading shape."""
    if not isinstance(given, Operand):
        return torch.full_like(like[..., :1], given)
    tensor = tensors[given.name]
    return tensor if given.per == "channel" else tensor[..., None]


def strongest(dtype: torch.dtype) -> float:
    """The log decay from which on the decay is 0 in `dtype`. Forms that sum log decays stop there: a reset of -1e9 or
    -inf would leave rounding errors, or nan, in every later sum of its chunk.
    """
    numbers = torch.finfo(dtype)
    return math.log(numbers.tiny * numbers.eps) - 1.0


def sign(given: Operand, tensors: Mapping[str, Tensor]) -> Tensor:
    """A decay point's sign as [..., 1] or [..., K]; a sign is a choice and carries no gradient."""
    tensor = tensors[given.name].detach()
    return tensor if given.per == "channel" else tensor[..., None]


def _factor(gate: Operand, tensors: Mapping[str, Tensor]) -> Tensor:
    tensor = tensors[gate.name]
    return tensor[..., None] if gate.per == "head" else tensor
