"""A rule at an end of a gate's range is the rule with that number written in its place: lam = 0 of Q-Delta is Gated
DeltaNet.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from archsearch.dsl import Kind, Operand, Rule
from archsearch.dsl.primitives import Decay
from archsearch.errors import RuleError
from archsearch.kernels.conformance.inputs import smooth
from archsearch.kernels.conformance.sensitivity import Sensitivity
from archsearch.kernels.conformance.setting import Setting, compare, differentiate, token_loop
from archsearch.kernels.conformance.verdict import Verdict, worst
from archsearch.lowering import lower

NAME = "limits_equal_the_named_rule"


def limits_equal_the_named_rule(setting: Setting) -> Verdict:
    """Each gate as a tensor of zeros, then of ones, and each log decay as zeros. At a limit a rule may be far more
    sensitive than itself: short floats have the bounds of its sensitivity there, strict or not.
    """
    inputs = setting.inputs()
    verdicts: list[Verdict] = []
    for operand in setting.form.operands:
        for number in _limits(operand):
            named = substituted(setting.rule, operand.name, number)
            kept = named.operands
            fixed = {operand.name: number, **({operand.sign.name: 1.0} if operand.sign else {})}
            limit = inputs.mapped(
                lambda name, tensor, fixed=fixed: torch.full_like(tensor, fixed[name]) if name in fixed else tensor
            )
            own = dataclasses.replace(limit, tensors={name: limit.tensors[name] for name in kept})
            own = smooth(lower(named), own)
            limit = dataclasses.replace(limit, output_slope=own.output_slope)
            expected = token_loop(named, own)
            found = differentiate(setting.compiled(), limit)
            shared = {name: gradient for name, gradient in found.gradients.items() if name in expected.gradients}
            found = dataclasses.replace(found, gradients=shared)
            judged = compare(setting, NAME, found, expected, f"{operand.name} = {number:g}")
            verdicts += Sensitivity(named, own, expected).widened(setting, found, judged)
    return worst(NAME, verdicts)


def substituted(rule: Rule, name: str, replacement: float | Operand) -> Rule:
    """`rule` with the operand `name` replaced by a number or by another operand; its sign, if it has one, by 1.

    Errors: RuleError when the rule has no such operand, or when the replacement cannot stand there.
    """
    if name not in rule.operands:
        raise RuleError(
            f"rule {rule.name!r} has no operand {name!r}; it takes {', '.join(rule.operands)}. Name one of them"
        )
    return _replaced(rule, name, replacement)


def _limits(operand: Operand) -> tuple[float, ...]:
    if operand.is_gate:
        return (0.0, 1.0)
    return (0.0,) if operand.kind is Kind.LOG_DECAY else ()


def _replaced(node: Any, name: str, replacement: float | Operand) -> Any:
    if isinstance(node, Operand):
        return replacement if node.name == name else node
    if isinstance(node, tuple):
        return tuple(_replaced(child, name, replacement) for child in node)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(node, Decay) and isinstance(replacement, float) and isinstance(node.log_decay, Operand):
        return Decay(replacement) if node.log_decay.name == name else node
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return dataclasses.replace(
            node, **{f.name: _replaced(getattr(node, f.name), name, replacement) for f in dataclasses.fields(node)}
        )
    return node
