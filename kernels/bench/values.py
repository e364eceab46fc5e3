"""Whether results are right at the very size that is timed: the last head of the last sequence against float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from archsearch.dsl import Kind, Operand, Rule
from archsearch.kernels.bench.case import Case
from archsearch.kernels.conformance.inputs import Inputs
from archsearch.kernels.conformance.setting import relative_error
from archsearch.kernels.conformance.tolerances import Quantity, bound
from archsearch.kernels.conformance.verdict import Verdict, worst
from archsearch.kernels.dispatch import CompiledRule, compile

NAME = "timed_size_matches_float64"

Forward = Callable[[Mapping[str, Tensor]], Tensor]
"""Operands by name to the output [B, T, HV, V]."""


def forward_of(compiled: CompiledRule) -> Forward:
    """The output of a rule from no state."""
    return lambda tensors: compiled(initial_state=None, scale=None, cu_seqlens=None, **tensors).output


def agrees_at(
    forward: Forward, rule: Rule, inputs: Inputs, case: Case, *, gradients: bool = True, hard: bool = False
) -> Verdict:
    """Output, and the gradient of every operand, at the size of `inputs`, from no state; `hard` doubles the bounds of
    short floats.

    The other side is the chunkwise form in float64 on that head alone, which the token loop vouches for elsewhere: a
    loop over tens of thousands of tokens would take longer than all timings together.
    """
    alone = Inputs(
        {name: tensor[-1:, :, -1:].double() for name, tensor in inputs.tensors.items()},
        inputs.initial_state,
        inputs.output_slope[-1:, :, -1:].double(),
        inputs.state_slope,
    )
    expected = _quantities(forward_of(compile(rule, "torch")), rule, alone, gradients=gradients)
    found = _quantities(forward, rule, inputs, gradients=gradients)
    verdicts: list[Verdict] = []
    for name, tensor in found.items():
        error = relative_error(tensor[-1:, :, -1:], expected[name])
        what = "output" if name == "" else f"gradient of {name}"
        verdicts.append(Verdict(NAME, error, _bound(case, rule.operands.get(name), hard=hard), f"{what}, {case}"))
    return worst(NAME, verdicts)


def _quantities(forward: Forward, rule: Rule, inputs: Inputs, *, gradients: bool) -> dict[str, Tensor]:
    """The output under "", the gradients by operand."""
    if not gradients:
        with torch.no_grad():
            return {"": forward(inputs.tensors)}
    signs = {operand.name for operand in rule.operands.values() if operand.kind is Kind.SIGN}
    leaves = {name: tensor.detach().requires_grad_(name not in signs) for name, tensor in inputs.tensors.items()}
    wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    output = forward(leaves)
    slopes = torch.autograd.grad(output, list(wanted.values()), inputs.output_slope)
    return {"": output.detach(), **dict(zip(wanted, slopes, strict=True))}


def _bound(case: Case, operand: Operand | None, *, hard: bool) -> float:
    if operand is None:
        return bound(case.dtype, Quantity.VALUE, hard=hard)
    plain = operand.is_address or operand.kind is Kind.VALUE
    return bound(case.dtype, Quantity.GRADIENT if plain else Quantity.GATE_GRADIENT, hard=hard)
