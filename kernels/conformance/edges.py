"""Numbers at the ends of their ranges, and lengths around a chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from archsearch.dsl import Kind, Operand
from archsearch.kernels.conformance.inputs import Inputs
from archsearch.kernels.conformance.sensitivity import agreeing
from archsearch.kernels.conformance.setting import Outcome, Setting, compare, differentiate, token_loop
from archsearch.kernels.conformance.verdict import Verdict, worst

STRENGTHS = (0.0, 1.0, 2.0)
LOG_DECAYS = (0.0, -1e-4, -5.0, -50.0)
RESET = -1e9
LARGE = 1e4


def edges_stay_finite(setting: Setting) -> Verdict:
    """Strengths of 0, 1 and 2; log decays of 0, -1e-4, -5 and -50 and resets, at the larger chunk, where an exponent
    of the wrong sign overflows; equal keys; zero vectors; values of 1e4. No NaN or Inf where the token loop has none:
    the error is the number of such entries. Where there are none, in float64, the results are the token loop's.
    """
    name = "edges_stay_finite"
    verdicts: list[Verdict] = []
    short, long = setting.chunk_sizes
    for chunk, edges in ((short, _edges(setting, short + 1)), (long, _decay_edges(setting, long + 1))):
        for where, inputs in edges:
            found, expected = differentiate(setting.compiled(chunk), inputs), token_loop(setting.rule, inputs)
            broken = _broken(found, expected)
            verdicts.append(Verdict(name, float(broken), 0.0, where))
            if not broken and setting.dtype == torch.float64:
                verdicts += compare(setting, name, found, expected, where)
    return worst(name, verdicts)


def any_length_works(setting: Setting) -> Verdict:
    """0, 1, chunk - 1, chunk and chunk + 1 tokens."""
    name, chunk = "any_length_works", setting.chunk_sizes[0]
    verdicts: list[Verdict] = []
    for tokens in (0, 1, chunk - 1, chunk, chunk + 1):
        inputs = setting.inputs(replace(setting.shape, tokens=tokens))
        found = differentiate(setting.compiled(), inputs)
        verdicts += agreeing(setting, name, found, inputs, f"{tokens} tokens, chunk {chunk}")
    return worst(name, verdicts)


def _decay_edges(setting: Setting, tokens: int) -> Iterator[tuple[str, Inputs]]:
    base = setting.inputs(replace(setting.shape, tokens=tokens))
    if any(operand.kind is Kind.LOG_DECAY for operand in setting.form.operands):
        yield from ((f"log decays of {number:g}", _filled(setting, base, "log decay", number)) for number in LOG_DECAYS)
        yield "resets", _reset(setting, base, [tokens // 3, tokens - 2, tokens - 1])


def _edges(setting: Setting, tokens: int) -> Iterator[tuple[str, Inputs]]:
    operands = {operand.name: operand for operand in setting.form.operands}
    base = setting.inputs(replace(setting.shape, tokens=tokens))
    if any(operand.is_gate for operand in operands.values()):
        yield from ((f"strengths of {number:g}", _filled(setting, base, "gate", number)) for number in STRENGTHS)
    first = next(operand.name for operand in operands.values() if operand.is_address)
    same = base.tensors[first][:, :1]
    yield (
        "equal keys",
        base.mapped(lambda name, tensor: same.expand_as(tensor).clone() if operands[name].is_address else tensor),
    )
    yield "zero keys", _filled(setting, base, "address", 0.0)
    yield "zero values", _filled(setting, base, "value", 0.0)
    yield "values of 1e4", base.mapped(lambda name, tensor: tensor * LARGE if _is(operands[name], "value") else tensor)


def _filled(setting: Setting, base: Inputs, kind: str, number: float) -> Inputs:
    operands = {operand.name: operand for operand in setting.form.operands}
    return base.mapped(lambda name, tensor: torch.full_like(tensor, number) if _is(operands[name], kind) else tensor)


def _reset(setting: Setting, base: Inputs, tokens: list[int]) -> Inputs:
    """Log decays of RESET at some tokens: nothing from before is left."""
    operands = {operand.name: operand for operand in setting.form.operands}
    at = torch.tensor(tokens, device=setting.device)
    return base.mapped(lambda name, x: x.index_fill(1, at, RESET) if _is(operands[name], "log decay") else x)


def _is(operand: Operand, kind: str) -> bool:
    match kind:
        case "gate":
            return operand.is_gate
        case "address":
            return operand.is_address
        case "value":
            return operand.kind is Kind.VALUE
        case _:
            return operand.kind is Kind.LOG_DECAY


def _broken(found: Outcome, expected: Outcome) -> int:
    pairs = [(found.output, expected.output), (found.state, expected.state)]
    pairs += [(gradient, expected.gradients[name]) for name, gradient in found.gradients.items()]
    return sum(int((~x.isfinite().to(y.device) & y.isfinite()).sum()) for x, y in pairs)
