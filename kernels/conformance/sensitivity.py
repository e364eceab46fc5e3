"""How far a rule's own results move when what it is computed from is rounded: no backend can be nearer than that.

The token loop in float64 runs once more on operands that are a rounding away from themselves, another one wherever an
expression uses them, as kernels round a row before they multiply it, and the state that the sequence begins with, which
they keep in float32 and round to multiply it. A read that cancels, such as one at the address just erased, or a state
that feedback expands, makes a rounding of its rows large in the result. What two roundings of intermediate results do
is measured beside it; see `short_products`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from archsearch.dsl import Expression, Kind, Operand, Rule
from archsearch.kernels import normalising, reference
from archsearch.kernels.call import Call, Result, checked
from archsearch.kernels.conformance import short_products
from archsearch.kernels.conformance.inputs import Inputs
from archsearch.kernels.conformance.setting import Outcome, Setting, compare, quantity_of, relative_error, token_loop
from archsearch.kernels.conformance.tolerances import MOST_WIDENED, MOST_WIDENED_WIDE, ORDINARY, ROUNDINGS
from archsearch.kernels.conformance.verdict import Verdict
from archsearch.lowering import NormalForm, lower

ROUNDING = 2.0**-9
"""The largest relative error of rounding to bfloat16."""

DRAWS = 2


class Sensitivity:
    """Of one rule on some inputs; measured when it is first asked for."""

    def __init__(self, rule: Rule, inputs: Inputs, expected: Outcome) -> None:
        """expected: what the token loop gives, in float64."""
        self._form, self._inputs, self._expected = lower(rule), inputs, expected
        self._found: dict[str, float] | None = None
        self._lost: dict[torch.dtype, dict[str, float]] = {}

    def of(self, name: str) -> float:
        """The relative change of `output`, `state`, or the gradient of an operand or of `initial_state`, in roundings
        of the operands: their root mean square, 1 where a result moves as far as what it is made of.
        """
        if self._found is None:
            moved = [_moved(self._form, self._inputs, seed) for seed in range(DRAWS)]
            changes = [_changes(outcome, self._expected) for outcome in moved]
            unit = ROUNDING / 3**0.5
            self._found = {name: sum(each[name] for each in changes) / len(changes) / unit for name in changes[0]}
        return self._found[name]

    def lost(self, name: str, setting: Setting) -> float:
        """The relative change where products of operands, and L of a chunk of as many rows as the setting's larger has
        tokens, are rounded to its 16-bit dtype, and nothing else.
        """
        if setting.dtype not in self._lost:
            rounded = partial(short_products.run, rows=max(setting.chunk_sizes), dtype=setting.dtype)
            self._lost[setting.dtype] = _changes(_outcome(self._form, self._inputs, rounded), self._expected)
        return self._lost[setting.dtype][name]

    def factor(self, name: str, setting: Setting, bound: float) -> float:
        """By how much the table's bound of a 16-bit dtype is too narrow for this rule: 1 where it is not."""
        own = self.of(name) / ORDINARY[quantity_of(self._form, name)]
        return max(1.0, own, math.hypot(1.0, self.lost(name, setting) / bound))

    def widened(self, setting: Setting, found: Outcome, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """The verdicts of `compare` on `found`, where one failed in 16 or 32 bits with the bound of a rule of this
        sensitivity; see `ORDINARY` and `ROUNDINGS`.
        """
        if setting.dtype == torch.float64:
            return list(verdicts)
        widened = self._widened_wide if setting.dtype == torch.float32 else partial(self._widened_short, setting)
        pairs = zip(("output", "state", *found.gradients), verdicts, strict=True)
        return [verdict if verdict.passed else widened(name, verdict) for name, verdict in pairs]

    def _widened_short(self, setting: Setting, name: str, verdict: Verdict) -> Verdict:
        factor = min(MOST_WIDENED, self.factor(name, setting, verdict.bound))
        return dataclasses.replace(verdict, bound=verdict.bound * factor)

    def _widened_wide(self, name: str, verdict: Verdict) -> Verdict:
        needed = min(MOST_WIDENED_WIDE * verdict.bound, ROUNDINGS * self.of(name) * torch.finfo(torch.float32).eps)
        return dataclasses.replace(verdict, bound=max(verdict.bound, needed))


def agreeing(setting: Setting, name: str, found: Outcome, inputs: Inputs, where: str) -> list[Verdict]:
    """A verdict a tensor of what the backend `found` for these inputs against the token loop; unless the setting is
    strict, with the bounds of the rule's sensitivity on them where those of the table fail.
    """
    expected = token_loop(setting.rule, inputs)
    judged = compare(setting, name, found, expected, where)
    return judged if setting.strict else Sensitivity(setting.rule, inputs, expected).widened(setting, found, judged)


def _changes(found: Outcome, expected: Outcome) -> dict[str, float]:
    values = {"output": (found.output, expected.output), "state": (found.state, expected.state)}
    pairs = values | {name: (gradient, expected.gradients[name]) for name, gradient in found.gradients.items()}
    return {name: relative_error(one, other) for name, (one, other) in pairs.items()}


def _moved(form: NormalForm, inputs: Inputs, seed: int) -> Outcome:
    """Values and gradients of the token loop with every use of an operand off by a rounding of its own, and the state
    that the sequence begins with.
    """
    generator = torch.Generator().manual_seed(seed)
    apart, uses = _apart(form)

    def moved(_: NormalForm, call: Call) -> Result:
        leaves = call.tensors
        given = {use: leaves[name] if name == use else _off(leaves[name], generator) for use, name in uses.items()}
        state = None if call.initial_state is None else _off(call.initial_state, generator)
        off = call._replace(tensors=given, initial_state=state)
        return normalising.through(apart, off, partial(reference.run, apart))

    return _outcome(form, inputs, moved)


def _outcome(form: NormalForm, inputs: Inputs, run: Callable[[NormalForm, Call], Result]) -> Outcome:
    """Values and gradients of a form of the rule in float64."""
    signs = {operand.name for operand in form.operands if operand.kind is Kind.SIGN}
    leaves = {name: x.detach().double().requires_grad_(name not in signs) for name, x in inputs.tensors.items()}
    state = inputs.initial_state.detach().double().requires_grad_()
    result = run(form, checked(form, leaves, state, None, None))
    slopes = inputs.output_slope.double(), inputs.state_slope.double()
    loss = (result.output * slopes[0]).sum() + (result.state * slopes[1]).sum()
    wanted = {name: leaf for name, leaf in {**leaves, "initial_state": state}.items() if leaf.requires_grad}
    found = cast("tuple[Tensor | None, ...]", torch.autograd.grad(loss, list(wanted.values()), allow_unused=True))
    pairs = zip(wanted.items(), found, strict=True)
    gradients = {name: torch.zeros_like(leaf) if slope is None else slope for (name, leaf), slope in pairs}
    return Outcome(result.output.detach(), result.state.detach(), gradients)


def _off(x: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x.device)
    return x * (1 + ROUNDING * (2 * drawn - 1))


def _apart(form: NormalForm) -> tuple[NormalForm, Mapping[str, str]]:
    """The form with an operand of its own at every use in an expression, and whose copy each of its operands is."""
    copies: dict[Operand, str] = {}

    def own(expression: Expression, place: str) -> Expression:
        def copy(operand: Operand) -> Operand:
            made = dataclasses.replace(operand, name=f"{operand.name}_{place}")
            copies[made] = operand.name
            return made

        return tuple(
            dataclasses.replace(
                term,
                gates=tuple(copy(gate) for gate in term.gates),
                vector=None if term.vector is None else copy(term.vector),
            )
            for term in expression
        )

    rows = tuple(
        dataclasses.replace(
            row,
            write=own(row.write, f"write_{i}"),
            residual=own(row.residual, f"residual_{i}"),
            target=own(row.target, f"target_{i}"),
        )
        for i, row in enumerate(form.rows)
    )
    bonus = form.read.bonus
    if bonus is not None:
        parts = {name: own(getattr(bonus, name), f"bonus_{name}") for name in ("weight", "address", "target")}
        bonus = dataclasses.replace(bonus, **parts)
    read = dataclasses.replace(form.read, address=own(form.read.address, "read"), bonus=bonus)
    kept = [operand for operand in form.operands if operand.kind in (Kind.LOG_DECAY, Kind.SIGN)]
    operands = (*copies, *kept)
    uses = {operand.name: copies.get(operand, operand.name) for operand in operands}
    return dataclasses.replace(form, operands=operands, rows=rows, read=read), uses
