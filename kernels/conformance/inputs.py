"""Tensors for any rule from a seed: easy ones as a trained layer makes them, hard ones at the ends of every range."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor

from archsearch.dsl import Kind, Operand
from archsearch.kernels.call import checked
from archsearch.kernels.normalising import widened
from archsearch.kernels.reference import run
from archsearch.lowering import NormalForm

KINK = 2.0**-4
"""Relative; rounding the operands to bfloat16 moves divisors of the named rules by up to 0.022 of their least, and
kernels round what they make of them besides.
"""

COUNTED = 8.0
"""How much more than of anything else the initial state has in a normaliser's column: divisors then stand on both sides
of their least.
"""


LOST = -100.0
"""A log decay that leaves nothing."""


class Difficulty(Enum):
    """EASY: independent unit keys, sigmoid gates, mild decay. HARD: correlated keys, strengths near 1 and at 0, no and
    strong decay.
    """

    EASY = "easy"
    HARD = "hard"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a call; `value_heads` is a multiple of `heads`."""

    batch: int
    tokens: int
    heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    def of(self, operand: Operand) -> tuple[int, ...]:
        """The shape of an operand's tensor."""
        sizes = {
            "B": self.batch,
            "T": self.tokens,
            "H": self.heads,
            "HV": self.value_heads,
            "K": self.key_dim,
            "V": self.value_dim,
        }
        return tuple(sizes[dim] for dim in operand.shape.strip("[]").split(", "))

    def state_of(self, form: NormalForm) -> tuple[int, int, int, int]:
        """The shape of the state, the column of a normaliser included."""
        return (self.batch, self.value_heads, self.key_dim, form.columns(self.value_dim))


@dataclass(frozen=True, slots=True)
class Inputs:
    """Operands by name, the state they meet, and the slopes of the loss in the output and the final state."""

    tensors: Mapping[str, Tensor]
    initial_state: Tensor
    output_slope: Tensor
    state_slope: Tensor

    def mapped(self, change: Callable[[str, Tensor], Tensor]) -> Inputs:
        """With every operand changed by name."""
        return replace(self, tensors={name: change(name, tensor) for name, tensor in self.tensors.items()})

    def tokens(self, start: int, end: int) -> Inputs:
        """Tokens start .. end - 1 alone."""
        cut = self.mapped(lambda _, tensor: tensor[:, start:end])
        return replace(cut, output_slope=self.output_slope[:, start:end])

    def rows(self, start: int, end: int) -> Inputs:
        """Batch rows start .. end - 1 alone."""
        cut = self.mapped(lambda _, tensor: tensor[start:end])
        slopes = (self.output_slope[start:end], self.state_slope[start:end])
        return Inputs(cut.tensors, self.initial_state[start:end], *slopes)


def draw(
    form: NormalForm,
    shape: Shape,
    *,
    seed: int = 0,
    difficulty: Difficulty = Difficulty.HARD,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Inputs:
    """Inputs of a rule, the same on every device: drawn in float64 on the CPU, then rounded.

    Log decays and signs stay float32 where `dtype` has 16 bits, and so do the states. Where a read is normalised,
    addresses and the column of ones are positive: the divisor of a rule that means it so is then far from 0. Hard
    addresses are squares, whose mean cosine is 1/2 where that of the signed ones is; easy ones fourth powers, with one
    of 0.09. Without their signs alone they would be nearer to each other, 0.72 and 0.64: harder than hard.

    A row that adds what it recalls at another address would enlarge the state without end: what it writes at is drawn
    as the layers of such rules make it, the residual address gated by channel, of the sign that takes away.
    """
    generator = torch.Generator().manual_seed(seed)
    wide = dtype if dtype in (torch.float64, torch.float32) else torch.float32
    common = _normal(generator, (shape.batch, 1, shape.heads, shape.key_dim))
    tensors: dict[str, Tensor] = {}
    normalised, power = form.read.normaliser is not None, 2 if difficulty is Difficulty.HARD else 4
    state_shape = shape.state_of(form)
    for operand in form.operands:
        drawn = _operand(operand, shape, generator, difficulty, common)
        drawn = _unit(drawn**power) if normalised and operand.is_address else drawn
        kept = wide if operand.kind in (Kind.LOG_DECAY, Kind.SIGN) else dtype
        tensors[operand.name] = drawn.to(device=device, dtype=kept)
    for written, recalled in _adding(form):
        gated = -tensors[recalled].double().cpu() * _uniform(generator, tensors[recalled].shape)
        tensors[written] = gated.to(tensors[written])
    state = _normal(generator, state_shape)
    if normalised:
        state[..., -1].abs_().mul_(COUNTED)
    state = state.to(device=device, dtype=wide)
    slope_shape = (shape.batch, shape.tokens, shape.value_heads, shape.value_dim)
    output_slope = _normal(generator, slope_shape).to(device=device, dtype=dtype)
    return Inputs(tensors, state, output_slope, _normal(generator, state_shape).to(device=device, dtype=wide))


def losing(form: NormalForm, inputs: Inputs, tokens: Collection[int]) -> Inputs:
    """Inputs with the first channel lost at some tokens, of each decay that has channels: others go on as they were."""
    names = {operand.name for operand in form.operands if operand.kind is Kind.LOG_DECAY and operand.per == "channel"}
    places = torch.tensor(sorted(tokens), device=inputs.initial_state.device)

    def lost(name: str, x: Tensor) -> Tensor:
        if name not in names:
            return x
        changed = x.clone()
        changed[:, places, :, 0] = LOST
        return changed

    return inputs.mapped(lost)


def _adding(form: NormalForm) -> list[tuple[str, str]]:
    """Operands at which a row writes and recalls, and nothing else, where it adds what it recalls."""
    pairs: list[tuple[str, str]] = []
    for row in form.rows:
        if len(row.write) == len(row.residual) == 1:
            write, residual = row.write[0], row.residual[0]
            adds = write.coefficient * residual.coefficient < 0
            if adds and write.vector and residual.vector and write.vector != residual.vector:
                pairs.append((write.vector.name, residual.vector.name))
    return pairs


def smooth(form: NormalForm, inputs: Inputs) -> Inputs:
    """Inputs of a normalised read whose loss has one gradient: without a slope where a divisor is within `KINK` of the
    least. On one side it has a gradient, on the other none, and rounding decides on which side it is.
    """
    least = form.read.normaliser
    if least is None:
        return inputs
    tensors = {name: tensor.double() for name, tensor in inputs.tensors.items()}
    call = checked(form, tensors, inputs.initial_state.double(), None, None)
    output = run(form, widened(form, call, aligned=False)).output
    apart = (output[..., call.value_dim :].abs() / least - 1).abs() > KINK
    return replace(inputs, output_slope=inputs.output_slope * apart.to(inputs.output_slope.dtype))


def _operand(
    operand: Operand, shape: Shape, generator: torch.Generator, difficulty: Difficulty, common: Tensor
) -> Tensor:
    size, hard = shape.of(operand), difficulty is Difficulty.HARD
    if operand.is_address:
        return _addresses(size, generator, common if hard else torch.zeros_like(common))
    if operand.kind is Kind.VALUE:
        return _normal(generator, size)
    if operand.kind is Kind.SIGN:
        return torch.where(_uniform(generator, size) < 0.3, -1.0, 1.0).double()
    if operand.kind is Kind.LOG_DECAY:
        return _log_decays(size, generator, hard)
    return _gates(size, generator, hard)


def _addresses(size: tuple[int, ...], generator: torch.Generator, common: Tensor) -> Tensor:
    """Unit vectors; with a common direction their mean cosine is near 0.5."""
    return _unit(_normal(generator, size) + common)


def _unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def _gates(size: tuple[int, ...], generator: torch.Generator, hard: bool) -> Tensor:
    gates = _normal(generator, size).sigmoid()
    if not hard:
        return gates
    choice = _uniform(generator, size)
    near_one = 1 - 0.02 * _uniform(generator, size)
    return torch.where(choice < 0.6, near_one, torch.where(choice < 0.7, 0.0, gates))


def _log_decays(size: tuple[int, ...], generator: torch.Generator, hard: bool) -> Tensor:
    mild = torch.nn.functional.logsigmoid(_normal(generator, size) + 3)
    if not hard:
        return mild
    choice = _uniform(generator, size)
    strong = -5 * _uniform(generator, size)
    return torch.where(choice < 0.35, 0.0, torch.where(choice < 0.5, -1e-4, torch.where(choice < 0.6, strong, mild)))


def _normal(generator: torch.Generator, size: tuple[int, ...]) -> Tensor:
    return torch.randn(size, generator=generator, dtype=torch.float64)


def _uniform(generator: torch.Generator, size: tuple[int, ...]) -> Tensor:
    return torch.rand(size, generator=generator, dtype=torch.float64)
