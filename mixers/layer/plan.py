"""What a mixer is but for its weights: sizes and sources, all settled, in the order in which it computes. No tensors.

The modules, the exact counts and an exported layer are written from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archsearch.dsl import Kind, Operand, Rule
from archsearch.mixers.layer import options as o


@dataclass(frozen=True, slots=True)
class Sizes:
    """width of the model, H key heads of K channels, HV value heads of V channels."""

    width: int
    heads: int
    value_heads: int
    key: int
    value: int


@dataclass(frozen=True, slots=True)
class Part:
    """One operand: `heads` x `dim` numbers a token (dim 1: one a head), from `source`, in which nothing is left open.

    `inputs`: its rows of the fused projection of the token, 0 when it needs none. `conv`: width of its convolution.
    """

    operand: Operand
    source: o.Source
    heads: int
    dim: int
    inputs: int
    conv: int = 0

    @property
    def name(self) -> str:
        """The operand's name."""
        return self.operand.name

    @property
    def size(self) -> int:
        """Numbers a token."""
        return self.heads * self.dim

    @property
    def map(self) -> o.Map | None:
        """How the token is projected; None for a source that does not look at the token itself."""
        return getattr(self.source, "projection", None)

    @property
    def bare(self) -> bool:
        """Whether the fused projection holds all its weights."""
        free = isinstance(self.source, o.Vector) or (isinstance(self.source, o.Sigmoid) and self.source.bias is None)
        return free and self.map == o.Linear()

    @property
    def origin(self) -> str | None:
        """The operand that this one is made of, if it is made of another."""
        return self.source.of if isinstance(self.source, o.Projection | o.StepDecay) else None


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Everything about a mixer but its weights. `parts` stand in the order of the fused projection's rows.

    Convolved operands come first, widest kernel first, those treated alike together; then the rest, then the output
    gate with `gate_inputs` rows.
    """

    rule: Rule
    layer: o.Layer
    sizes: Sizes
    parts: tuple[Part, ...]
    gate_map: o.Map | None
    gate_inputs: int

    @property
    def inputs(self) -> int:
        """Rows of the fused projection."""
        return sum(part.inputs for part in self.parts) + self.gate_inputs

    @property
    def outputs(self) -> int:
        """Columns of the output projection: HV * V."""
        return self.sizes.value_heads * self.sizes.value

    @property
    def convolutions(self) -> tuple[tuple[int, int], ...]:
        """(kernel width, channels) of each convolution, widest first."""
        widths = dict.fromkeys(part.conv for part in self.parts if part.conv)
        return tuple((width, sum(part.size for part in self.parts if part.conv == width)) for width in widths)

    @property
    def rotary(self) -> bool:
        """Whether positions count."""
        return any(isinstance(part.source, o.Vector) and part.source.rotary for part in self.parts)

    @property
    def skipped(self) -> str | None:
        """The value that the skip adds: the last one of the rule."""
        values = [part.name for part in self.parts if part.operand.kind is Kind.VALUE]
        return values[-1] if self.layer.skip else None

    def alike(self) -> tuple[tuple[Part, ...], ...]:
        """The parts, neighbours that one module without weights of its own can make together."""
        groups: list[tuple[Part, ...]] = []
        for part in self.parts:
            if groups and part.bare and _treated_alike(groups[-1][0], part):
                groups[-1] = (*groups[-1], part)
            else:
                groups.append((part,))
        return tuple(groups)

    def evaluation(self) -> Iterator[Part]:
        """The parts, each after the one that it is made of."""
        done: set[str] = set()
        waiting = list(self.parts)
        while waiting:
            ready = [part for part in waiting if part.origin is None or part.origin in done]
            yield from ready
            done |= {part.name for part in ready}
            waiting = [part for part in waiting if part.name not in done]


def _treated_alike(first: Part, second: Part) -> bool:
    return (first.source, first.heads, first.dim) == (second.source, second.heads, second.dim)
