"""A rule's steps followed as they are written. The token loop runs the normal form, which a wrong pass over the rule
would spoil for every backend alike; here nothing is expanded, merged, folded or put in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from archsearch.dsl import (
    Bonus,
    Decay,
    DeltaWrite,
    Erase,
    Kind,
    Operand,
    QueryFeedback,
    Read,
    Rule,
    Simultaneous,
    Write,
)
from archsearch.dsl.expressions import Product, Sum
from archsearch.kernels.conformance.inputs import Inputs
from archsearch.kernels.conformance.setting import Outcome, Setting, relative_error, token_loop
from archsearch.kernels.conformance.tolerances import Quantity, bound
from archsearch.kernels.conformance.verdict import Verdict, worst

NAME = "token_loop_follows_the_steps"
TOKENS = 6


def token_loop_follows_the_steps(setting: Setting) -> Verdict:
    """Output and state of the token loop, which every backend is held to, against the steps of the rule, in float64."""
    shape = replace(setting.shape, tokens=TOKENS)
    inputs = setting.inputs(shape)
    found, expected = token_loop(setting.rule, inputs), followed(setting.rule, inputs)
    limit, where = bound(torch.float64, Quantity.VALUE), f"{TOKENS} tokens"
    pairs = (("output", found.output, expected.output), ("state", found.state, expected.state))
    return worst(NAME, [Verdict(NAME, relative_error(x, y), limit, f"{what}, {where}") for what, x, y in pairs])


def followed(rule: Rule, inputs: Inputs) -> Outcome:
    """Values of a rule, a token and a step at a time, in float64."""
    state = inputs.initial_state.double()
    heads = state.shape[1]
    tensors = {name: _spread(operand, inputs.tensors[name], heads) for name, operand in rule.operands.items()}
    if any(isinstance(step, Read) and step.normaliser is not None for step in rule.steps):
        for name, operand in rule.operands.items():
            if operand.kind is Kind.VALUE:
                tensors[name] = torch.nn.functional.pad(tensors[name], (0, 1), value=1.0)
    outputs: list[Tensor] = []
    for t in range(inputs.output_slope.shape[1]):
        now = {name: tensor[:, t] for name, tensor in tensors.items()}
        output, state = _token(rule, now, state)
        outputs.append(output)
    return Outcome(torch.stack(outputs, 1), state, {})


def _spread(operand: Operand, tensor: Tensor, heads: int) -> Tensor:
    """[B, T, HV, K, V or 1] in float64: 1 for a number a head. Each value head has the address of its key head."""
    wide = tensor.double()
    if operand.is_address:
        wide = wide.repeat_interleave(heads // wide.shape[2], dim=2)
    return wide[..., None] if operand.per == "head" and not _is_vector(operand) else wide


def _is_vector(operand: Operand) -> bool:
    return operand.is_address or operand.kind is Kind.VALUE


def _token(rule: Rule, now: Mapping[str, Tensor], before: Tensor) -> tuple[Tensor, Tensor]:
    state, output = before, torch.zeros_like(before[:, :, 0])
    for step in rule.steps:
        match step:
            case Decay():
                state = _decay(step, now)[..., None] * state
            case Read():
                output = _read(step, now, state)
            case Simultaneous():
                state = state + sum(_change(each, now, state, before) for each in step.steps)
            case _:
                state = state + _change(step, now, state, before)
    return output, state


def _decay(step: Decay, now: Mapping[str, Tensor]) -> Tensor:
    given = step.log_decay
    if not isinstance(given, Operand):
        return next(iter(now.values())).new_tensor([given]).exp()
    return now[given.name].exp() * (now[given.sign.name] if given.sign else 1.0)


def _read(step: Read, now: Mapping[str, Tensor], state: Tensor) -> Tensor:
    q = _of(step.address, now)
    output = _recalled(state, q)
    if isinstance(step.bonus, Bonus):
        weight, address, target = (
            _of(part, now) for part in (step.bonus.weight, step.bonus.address, step.bonus.target)
        )
        output = output + (q * weight * address).sum(-1, keepdim=True) * target
    output = output * (state.shape[2] ** -0.5 if step.scale is None else step.scale)
    if step.normaliser is None:
        return output
    return output[..., :-1] / output[..., -1:].abs().clamp(min=step.normaliser)


def _change(step: Erase | DeltaWrite | Write, now: Mapping[str, Tensor], state: Tensor, before: Tensor) -> Tensor:
    """What a step adds to the state, [B, HV, K, V]."""
    address = _of(step.address, now)
    target = torch.zeros_like(state[:, :, 0]) if isinstance(step, Erase) else _of(step.target, now)
    if not isinstance(step, Write):
        recalls = before if step.reads == "previous" else state
        target = target - _recalled(recalls, _residual(step, address, now))
    return address[..., :, None] * (_of(step.strength, now) * target)[..., None, :]


def _residual(step: Erase | DeltaWrite, address: Tensor, now: Mapping[str, Tensor]) -> Tensor:
    given = step.residual if isinstance(step, DeltaWrite) else None
    if given is None:
        return address
    if isinstance(given, QueryFeedback):
        return address + _of(given.lam, now) * _of(given.address, now)
    return _of(given, now)


def _recalled(state: Tensor, address: Tensor) -> Tensor:
    """S^T x."""
    return torch.einsum("bhkv,bhk->bhv", state, address)


def _of(part: Any, now: Mapping[str, Tensor]) -> Any:
    """The value of an expression as it is written: a tensor, or a number."""
    match part:
        case Operand():
            return now[part.name]
        case Sum():
            return sum(_of(term, now) for term in part.terms)
        case Product():
            product: Any = 1.0
            for factor in part.factors:
                product = product * _of(factor, now)
            return product
        case _:
            return part
