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
    def origins(self) -> tuple[str, ...]:
        """The operands that this one is made of, if it is made of others."""
        match self.source:
            case o.Orthogonal(of=of, to=to, gate=gate):
                return (of, to, gate)
            case o.Preconditioner(key=key, strength=strength, decay=decay):
                return (key, strength) if decay is None else (key, strength, decay)
            case source:
                of: str | None = getattr(source, "of", None)
                return () if of is None else (of,)

    @property
    def remembers(self) -> bool:
        """Whether the cache keeps [heads, dim] numbers for it, of the tokens before."""
        delayed = isinstance(self.source, o.Vector) and self.source.delayed
        return delayed or isinstance(self.source, o.Delayed | o.Preconditioner)


TOKEN_SHIFT = "token shift"
"""Among the memories, the token before; no operand has such a name."""


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
    def memories(self) -> dict[str, tuple[int, ...]]:
        """What the cache keeps of the tokens before, beside state and convolutions: the shape for one sequence, by
        operand."""
        shift = {TOKEN_SHIFT: (self.sizes.width,)} if self.layer.token_shift else {}
        return {**shift, **{part.name: (part.heads, part.dim) for part in self.parts if part.remembers}}

    @property
    def projected(self) -> dict[str, int]:
        """Rows of the fused projection by operand, those of the output's gate last as `output gate`."""
        rows = {part.name: part.inputs for part in self.parts if part.inputs}
        return {**rows, "output gate": self.gate_inputs} if self.gate_inputs else rows

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
        """The parts, each after those that it is made of."""
        done: set[str] = set()
        waiting = list(self.parts)
        while waiting:
            ready = [part for part in waiting if done.issuperset(part.origins)]
            yield from ready
            done |= {part.name for part in ready}
            waiting = [part for part in waiting if part.name not in done]


def _treated_alike(first: Part, second: Part) -> bool:
    return (first.source, first.heads, first.dim) == (second.source, second.heads, second.dim)
