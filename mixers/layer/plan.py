"""A rule and a layer become a plan: every size and every source settled, in the order in which a mixer computes. No tensors.

The plan is what the modules, the exact counts and an exported layer are written from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from archsearch.dsl import Kind, Operand, Rule
from archsearch.errors import ConfigError, HoleError
from archsearch.holes import holes
from archsearch.mixers.layer import options as o

VECTORS = (Kind.QUERY, Kind.KEY, Kind.VALUE)
GATES = (Kind.GATE, Kind.CHANNEL_GATE)
FITTING: Mapping[Kind, tuple[type, ...]] = {
    **dict.fromkeys(VECTORS, (o.Vector, o.Projection, o.Static)),
    **dict.fromkeys(GATES, (o.Sigmoid, o.StepSize)),
    Kind.LOG_DECAY: (o.MambaDecay, o.BoundedDecay, o.LogSigmoid, o.StepDecay, o.FixedDecay),
}


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
    """One operand of the layer: `heads` x `dim` numbers a token (dim 1: one a head), from `source`, nothing left open in it.

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


def plan_layer(rule: Rule, width: int, heads: int, layer: o.Layer) -> LayerPlan:
    """The plan of `rule` in `layer`.

    Errors: HoleError for open holes; ConfigError for sizes that do not divide, a source of an operand that the rule
    does not have or that does not fit its kind.
    """
    if open_holes := {**holes(rule), **holes(layer)}:
        raise HoleError(
            f"rule {rule.name!r} or its layer has open holes: {', '.join(open_holes)}. Fill them with archsearch.resolve"
        )
    sizes = _sizes(width, heads, layer)
    _check_names(rule, layer)
    if layer.skip and not any(operand.kind is Kind.VALUE for operand in rule.operands.values()):
        raise ConfigError(f"layer.skip adds a value; rule {rule.name!r} takes {', '.join(rule.operands)}. Leave it out")
    parts = [_part(operand, layer, sizes) for operand in rule.operands.values() if operand.kind is not Kind.SIGN]
    _check_origins(rule, parts)
    ordered = sorted(parts, key=lambda part: (-part.conv, [p.source for p in parts].index(part.source)))
    gate = None if layer.output_gate == "none" else _settled(layer.gate_projection, sizes)
    gate_inputs = 0 if gate is None else _inputs(gate, sizes.value_heads, sizes.value)
    return LayerPlan(rule, layer, sizes, tuple(ordered), gate, gate_inputs)


def _treated_alike(first: Part, second: Part) -> bool:
    return (first.source, first.heads, first.dim) == (second.source, second.heads, second.dim)


def _sizes(width: int, heads: int, layer: o.Layer) -> Sizes:
    if width < 1 or heads < 1:
        raise ConfigError(f"width and heads must be at least 1; got width={width}, heads={heads}")
    if layer.head_dim is None and width % heads:
        raise ConfigError(
            f"width must be a multiple of heads; got width={width}, heads={heads}. Change one, or set layer.head_dim"
        )
    key = layer.head_dim or width // heads
    value_heads = layer.value_heads or heads
    value = round(key * layer.expand_v)
    if value_heads % heads:
        raise ConfigError(
            f"layer.value_heads must be a multiple of heads; got value_heads={value_heads}, heads={heads}"
        )
    if value < 1 or abs(value - key * layer.expand_v) > 1e-6:
        raise ConfigError(f"layer.expand_v times the head dimension must be whole; got {layer.expand_v} * {key}")
    return Sizes(width, heads, value_heads, key, value)


def _check_names(rule: Rule, layer: o.Layer) -> None:
    for name in layer.operands:
        if name not in rule.operands:
            raise ConfigError(
                f"layer.operands names {name!r}; rule {rule.name!r} takes {', '.join(rule.operands)}. Remove it, or rename it"
            )
        if rule.operands[name].kind is Kind.SIGN:
            raise ConfigError(
                f"layer.operands names the sign {name!r}; it comes with its log decay. Give the source there"
            )


def _check_origins(rule: Rule, parts: list[Part]) -> None:
    """What an operand is made of must exist, be of its sort, and lead back to the token."""
    by_name = {part.name: part for part in parts}
    for part in parts:
        seen = [part.name]
        while (origin := by_name[seen[-1]].origin) is not None:
            if origin not in by_name:
                raise ConfigError(
                    f"layer.operands.{seen[-1]} is made of {origin!r}; rule {rule.name!r} takes {', '.join(rule.operands)}"
                )
            if origin in seen:
                raise ConfigError(
                    f"layer.operands go in a circle: {' -> '.join([*seen, origin])}. Give one of them a projection of the token"
                )
            seen.append(origin)
        if part.origin is not None and not _same_sort(part, by_name[part.origin]):
            raise ConfigError(
                f"layer.operands.{part.name} is made of {part.origin!r}, which is a {by_name[part.origin].operand.kind.value}"
            )


def _same_sort(part: Part, origin: Part) -> bool:
    if isinstance(part.source, o.StepDecay):
        return origin.operand.kind is Kind.GATE and part.operand.per == "head"
    return part.operand.is_address == origin.operand.is_address and origin.operand.kind in VECTORS


def _part(operand: Operand, layer: o.Layer, sizes: Sizes) -> Part:
    heads, dim = _shape(operand, sizes)
    source = _resolved(operand, layer, sizes)
    fitting = (o.SignedDecay,) if operand.signed else FITTING[operand.kind]
    if not isinstance(source, fitting):
        names = ", ".join(kind.__name__ for kind in (o.Linear, o.LowRank, *fitting))
        raise ConfigError(
            f"layer.operands.{operand.name} is a {operand.kind.value} and takes one of {names}; got {type(source).__name__}"
        )
    projection: o.Map | None = getattr(source, "projection", None)
    inputs = 0 if projection is None else _inputs(projection, heads, dim)
    conv = (source.conv or 0) if isinstance(source, o.Vector) else 0
    if isinstance(source, o.Vector) and source.rotary and (dim % 2 or not operand.is_address):
        raise ConfigError(
            f"layer.operands.{operand.name}.rotary needs an address of even width; got {operand.kind.value}, width {dim}"
        )
    return Part(operand, source, heads, dim, inputs, conv)


def _shape(operand: Operand, sizes: Sizes) -> tuple[int, int]:
    if operand.is_address:
        return sizes.heads, sizes.key
    if operand.kind is Kind.VALUE:
        return sizes.value_heads, sizes.value
    if operand.per == "head":
        return sizes.value_heads, 1
    return sizes.value_heads, sizes.value if operand.of == "value" else sizes.key


def _resolved(operand: Operand, layer: o.Layer, sizes: Sizes) -> o.Source:
    """The operand's source with every default filled in."""
    given = layer.operands.get(operand.name, o.Linear())
    source = _of_kind(operand, given) if isinstance(given, o.Linear | o.LowRank) else given
    if isinstance(source, o.Vector):
        conv = layer.conv if source.conv is None else source.conv
        source = replace(source, conv=conv, activation=source.activation or "silu")
    if isinstance(source, o.Vector | o.Projection | o.Static) and source.norm is None:
        source = replace(source, norm="l2" if operand.is_address else "none")
    if isinstance(source, o.MambaDecay | o.BoundedDecay | o.LogSigmoid | o.SignedDecay) and source.projection is None:
        source = replace(source, projection=o.LowRank(None, shared=True) if operand.per == "channel" else o.Linear())
    projection: o.Map | None = getattr(source, "projection", None)
    return source if projection is None else replace(source, projection=_settled(projection, sizes))  # pyright: ignore[reportCallIssue]


def _of_kind(operand: Operand, projection: o.Map) -> o.Source:
    """The default source of the operand's kind with this projection."""
    if operand.signed:
        return o.SignedDecay(projection)
    if operand.kind is Kind.LOG_DECAY:
        return o.MambaDecay(projection=None if projection == o.Linear() else projection)
    if operand.kind in GATES:
        return o.Sigmoid(projection=projection)
    return o.Vector(projection) if isinstance(projection, o.Linear) else o.Vector(projection, conv=0, activation="none")


def _settled(projection: o.Map, sizes: Sizes) -> o.Map:
    if isinstance(projection, o.LowRank) and projection.rank is None:
        return replace(projection, rank=sizes.value)
    return projection


def _inputs(projection: o.Map, heads: int, dim: int) -> int:
    if isinstance(projection, o.Linear):
        return heads * dim
    rank = projection.rank or 0
    return rank if projection.shared else rank * heads
