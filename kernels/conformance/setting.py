"""What a property is measured on, and how a run of a rule is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from archsearch.dsl import Kind, Rule
from archsearch.kernels.conformance.inputs import Difficulty, Inputs, Shape, draw, smooth
from archsearch.kernels.conformance.tolerances import Quantity, bound
from archsearch.kernels.conformance.verdict import Verdict
from archsearch.kernels.dispatch import Backend, CompiledRule, compile
from archsearch.lowering import NormalForm, lower


@dataclass(frozen=True, slots=True)
class Setting:
    """A rule on a backend. `chunk_sizes`: the two at which it must agree; `shape` holds at least two chunks and three
    tokens of the larger. `strict`: held to the table, whatever its own sensitivity.
    """

    rule: Rule
    backend: Backend
    device: torch.device
    dtype: torch.dtype
    shape: Shape
    chunk_sizes: tuple[int, int]
    seed: int = 0
    strict: bool = False

    @property
    def form(self) -> NormalForm:
        """The rule taken apart."""
        return lower(self.rule)

    def compiled(self, chunk_size: int | None = None) -> CompiledRule:
        """The rule on the backend under test, in chunks of the smaller size unless told otherwise."""
        return compile(self.rule, self.backend, chunk_size or self.chunk_sizes[0])

    def inputs(self, shape: Shape | None = None, *, difficulty: Difficulty = Difficulty.HARD) -> Inputs:
        """Inputs of the setting's seed, dtype and device."""
        size = shape or self.shape
        drawn = draw(self.form, size, seed=self.seed, difficulty=difficulty, dtype=self.dtype, device=self.device)
        return smooth(self.form, drawn)

    def bound(self, quantity: Quantity = Quantity.VALUE, *, hard: bool = True) -> float:
        """The largest relative error that the dtype allows."""
        return bound(self.dtype, quantity, hard=hard)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run gave: values, and the gradients of <output, output_slope> + <state, state_slope> by operand and
    `initial_state`.
    """

    output: Tensor
    state: Tensor
    gradients: Mapping[str, Tensor]


def forward(compiled: CompiledRule, inputs: Inputs, *, cu_seqlens: Tensor | None = None) -> Outcome:
    """Values alone."""
    with torch.no_grad():
        result = compiled(initial_state=inputs.initial_state, scale=None, cu_seqlens=cu_seqlens, **inputs.tensors)
    return Outcome(result.output, result.state, {})


def differentiate(compiled: CompiledRule, inputs: Inputs, *, cu_seqlens: Tensor | None = None) -> Outcome:
    """Values and the gradient of everything that has one: signs have none."""
    signs = {operand.name for operand in compiled.normal_form.operands if operand.kind is Kind.SIGN}
    leaves = {
        name: tensor.detach().clone().requires_grad_(name not in signs) for name, tensor in inputs.tensors.items()
    }
    state = inputs.initial_state.detach().clone().requires_grad_()
    result = compiled(initial_state=state, scale=None, cu_seqlens=cu_seqlens, **leaves)
    wide = result.state.dtype
    loss = (result.output.to(wide) * inputs.output_slope.to(wide)).sum() + (
        result.state * inputs.state_slope.to(wide)
    ).sum()
    wanted = {name: leaf for name, leaf in {**leaves, "initial_state": state}.items() if leaf.requires_grad}
    found = cast("tuple[Tensor | None, ...]", torch.autograd.grad(loss, list(wanted.values()), allow_unused=True))
    gradients = {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(wanted.items(), found, strict=True)
    }
    return Outcome(result.output.detach(), result.state.detach(), gradients)


FEW = 2**25
"""Numbers of a state times tokens up to which a CPU's core takes no longer than a GPU that waits for its launches."""


def token_loop(rule: Rule, inputs: Inputs, *, cu_seqlens: Tensor | None = None) -> Outcome:
    """The meaning of the rule on these inputs, in float64: on the CPU, wherever they are, unless they are many."""
    few = inputs.initial_state.numel() * inputs.output_slope.shape[1] <= FEW
    place = torch.device("cpu") if few else inputs.initial_state.device

    def exact(tensor: Tensor) -> Tensor:
        return tensor.to(place, torch.float64)

    tensors = inputs.mapped(lambda _, tensor: exact(tensor)).tensors
    others = map(exact, (inputs.initial_state, inputs.output_slope, inputs.state_slope))
    offsets = None if cu_seqlens is None else cu_seqlens.to(place)
    return differentiate(compile(rule, "reference"), Inputs(tensors, *others), cu_seqlens=offsets)


SMALLEST = 1e-3
"""Root mean square below which a tensor is measured absolutely: inputs have size 1, so a smaller one is what
cancellation left.
"""


def relative_error(found: Tensor, expected: Tensor) -> float:
    """||found - expected|| / ||expected||, or more exactly / max(||expected||, SMALLEST sqrt(n)). NaN where either
    holds one, or the shapes differ. On the device of `expected`.
    """
    if found.shape != expected.shape:
        return float("nan")
    if expected.numel() == 0:
        return 0.0
    exact = expected.double()
    difference, size = length(found.to(exact) - exact), length(exact)
    return difference / max(size, SMALLEST * expected.numel() ** 0.5) if size == size else float("nan")


def length(x: Tensor) -> float:
    """||x|| over all entries."""
    return x.square().sum().sqrt().item()


def compare(
    setting: Setting, name: str, found: Outcome, expected: Outcome, where: str, *, hard: bool = True
) -> list[Verdict]:
    """A verdict a tensor: output, state, and each gradient that both have."""
    value = setting.bound(Quantity.VALUE, hard=hard)
    verdicts = [
        Verdict(name, relative_error(found.output, expected.output), value, f"output, {where}"),
        Verdict(name, relative_error(found.state, expected.state), value, f"state, {where}"),
    ]
    for operand, gradient in found.gradients.items():
        limit = setting.bound(quantity_of(setting.form, operand), hard=hard)
        error = relative_error(gradient, expected.gradients[operand])
        verdicts.append(Verdict(name, error, limit, f"gradient of {operand}, {where}"))
    return verdicts


def quantity_of(form: NormalForm, name: str) -> Quantity:
    """What a tensor is to the table: `output`, `state`, or the gradient of an operand or of `initial_state`."""
    if name in ("output", "state"):
        return Quantity.VALUE
    operand = next((operand for operand in form.operands if operand.name == name), None)
    if operand is None or operand.is_address or operand.kind is Kind.VALUE:
        return Quantity.GRADIENT
    return Quantity.GATE_GRADIENT
