"""A rule and a layer become a plan: defaults filled in, sizes checked, rows of the fused projection put in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from archsearch.dsl import Kind, Operand, Rule
from archsearch.errors import ConfigError, HoleError, RuleError
from archsearch.holes import holes
from archsearch.mixers.layer import options as o
from archsearch.mixers.layer.papers import paper_layer
from archsearch.mixers.layer.plan import LayerPlan, Part, Sizes

VECTORS = (Kind.QUERY, Kind.KEY, Kind.VALUE)
GATES = (Kind.GATE, Kind.CHANNEL_GATE)
ADDRESSES = (o.Vector, o.Projection, o.Static, o.Delayed, o.Scaled, o.Gated, o.Complement, o.Orthogonal)
FITTING: Mapping[Kind, tuple[type, ...]] = {
    Kind.QUERY: ADDRESSES,
    Kind.KEY: ADDRESSES,
    Kind.VALUE: (o.Vector, o.Projection, o.Static, o.Delayed),
    Kind.GATE: (o.Sigmoid, o.StepSize, o.Exponential, o.Constant, o.Step),
    Kind.CHANNEL_GATE: (o.Sigmoid, o.StepSize, o.Exponential, o.Constant, o.Preconditioner),
    Kind.LOG_DECAY: (
        o.MambaDecay,
        o.BoundedDecay,
        o.LogSigmoid,
        o.CappedForget,
        o.LowerBound,
        o.RampDecay,
        o.StepDecay,
        o.WeightDecay,
        o.FixedDecay,
    ),
}
Decaying = o.MambaDecay | o.BoundedDecay | o.LogSigmoid | o.CappedForget | o.LowerBound | o.RampDecay | o.SignedDecay
"""Log decays of a projection, whose default depends on whether there is one a head or one a channel."""

Projected = o.Vector | o.Gated | o.Sigmoid | o.StepSize | o.Exponential | o.Step | Decaying
"""Sources that look at the token themselves."""


def layer_of(rule: Rule, layer: o.Layer | None) -> o.Layer:
    """`layer` itself; None is the paper's layer for a rule of the zoo, else the default one. RuleError for no rule."""
    if not isinstance(rule, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RuleError(f"a layer is made of a Rule; got {rule!r}. A rule of the zoo is archsearch.rules[name]")
    return layer or paper_layer(rule) or o.Layer()


def plan_layer(rule: Rule, width: int, heads: int, layer: o.Layer) -> LayerPlan:
    """The plan of `rule` in `layer`.

    Errors: HoleError for open holes; ConfigError for what is no layer, sizes that do not divide, a source of an operand
    that the rule does not have or that does not fit its kind, a rule that writes no value.
    """
    if not isinstance(layer, o.Layer):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"layer must be a Layer; got {type(layer).__name__}. Write Layer(conv=4, ...)")
    if open_holes := {**holes(rule), **holes(layer)}:
        paths = ", ".join(open_holes)
        raise HoleError(f"rule {rule.name!r} or its layer has open holes: {paths}. Fill them with archsearch.resolve")
    sizes = _sizes(width, heads, layer)
    _check_names(rule, layer)
    if not any(operand.kind is Kind.VALUE for operand in rule.operands.values()):
        raise ConfigError(
            f"a layer's state starts at zero and needs a value to be written; {_takes(rule)}. Add a write"
        )
    parts = [_part(operand, layer, sizes) for operand in rule.operands.values() if operand.kind is not Kind.SIGN]
    _check_origins(rule, parts)
    ordered = sorted(parts, key=lambda part: (-part.conv, [p.source for p in parts].index(part.source)))
    gate = None if layer.output_gate == "none" else _settled(layer.gate_projection, sizes)
    gate_inputs = 0 if gate is None else _inputs(gate, sizes.value_heads, sizes.value)
    return LayerPlan(rule, layer, sizes, tuple(ordered), gate, gate_inputs)


def _takes(rule: Rule) -> str:
    return f"rule {rule.name!r} takes {', '.join(rule.operands)}"


def _sizes(width: int, heads: int, layer: o.Layer) -> Sizes:
    if any(type(size) is not int or size < 1 for size in (width, heads)):
        raise ConfigError(f"width and heads must be whole numbers of at least 1; got width={width!r}, heads={heads!r}")
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
            raise ConfigError(f"layer.operands names {name!r}; {_takes(rule)}. Remove it, or rename it")
        if rule.operands[name].kind is Kind.SIGN:
            raise ConfigError(
                f"layer.operands names the sign {name!r}; it comes with its log decay. Give the source there"
            )


def _check_origins(rule: Rule, parts: list[Part]) -> None:
    """What an operand is made of must exist, be of its sort, and lead back to the token."""
    by_name = {part.name: part for part in parts}
    for part in parts:
        for origin in part.origins:
            if origin not in by_name:
                raise ConfigError(f"layer.operands.{part.name} is made of {origin!r}; {_takes(rule)}")
    for part in parts:
        _check_circle(part, by_name, ())
        for place, origin in enumerate(part.origins):
            wanted, fits = _wanted(part, place, by_name[origin].operand)
            if not fits:
                kind = by_name[origin].operand.kind.value
                raise ConfigError(f"layer.operands.{part.name} is made of {wanted}; got the {kind} {origin!r}")


def _check_circle(part: Part, by_name: Mapping[str, Part], seen: tuple[str, ...]) -> None:
    if part.name in seen:
        circle = " -> ".join([*seen, part.name])
        raise ConfigError(f"layer.operands go in a circle: {circle}. Give one of them a projection of the token")
    for origin in part.origins:
        _check_circle(by_name[origin], by_name, (*seen, part.name))


def _wanted(part: Part, place: int, given: Operand) -> tuple[str, bool]:
    """What the origin of an operand at this place must be, in words, and whether it is."""
    match part.source:
        case o.StepDecay() | o.WeightDecay():
            return "a gate", given.kind is Kind.GATE and part.operand.per == "head"
        case o.Step():
            return "an address", given.is_address
        case o.Complement():
            return "a log decay per channel", given.kind is Kind.LOG_DECAY and given.per == "channel"
        case o.Orthogonal() if place == 2:
            return "a channel gate of the key", given.kind is Kind.CHANNEL_GATE and given.of == "key"
        case o.Preconditioner() if place == 0:
            return "an address", given.is_address
        case o.Preconditioner() if place == 1:
            return "a gate", given.kind is Kind.GATE
        case o.Preconditioner():
            return "a log decay", given.kind is Kind.LOG_DECAY and not given.signed
        case _:
            own = part.operand.is_address == given.is_address and given.kind in VECTORS
            return "a vector of its own space", own


def _part(operand: Operand, layer: o.Layer, sizes: Sizes) -> Part:
    heads, dim = _shape(operand, sizes)
    source = _resolved(operand, layer, sizes)
    fitting = (o.SignedDecay,) if operand.signed else FITTING[operand.kind]
    if not isinstance(source, fitting):
        names = ", ".join(kind.__name__ for kind in (o.Linear, o.LowRank, *fitting))
        where = f"layer.operands.{operand.name}"
        raise ConfigError(f"{where} is a {operand.kind.value} and takes one of {names}; got {type(source).__name__}")
    projection: o.Map | None = getattr(source, "projection", None)
    inputs = 0 if projection is None else _inputs(projection, heads, dim)
    conv = (source.conv or 0) if isinstance(source, o.Vector) else 0
    _check_part(operand, source, dim, sizes)
    return Part(operand, source, heads, dim, inputs, conv)


def _check_part(operand: Operand, source: o.Source, dim: int, sizes: Sizes) -> None:
    """What a source asks of its operand beyond the kind."""
    where = f"layer.operands.{operand.name}"
    if isinstance(source, o.Vector) and source.rotary and (dim % 2 or not operand.is_address):
        raise ConfigError(f"{where}.rotary needs an address of even width; got a {operand.kind.value} of width {dim}")
    if isinstance(source, o.Vector) and source.rotary and source.delayed:
        raise ConfigError(f"{where} is rotary and delayed; the rotation would be the next token's. Leave one out")
    if isinstance(source, o.Preconditioner) and operand.of == "value":
        raise ConfigError(f"{where} is a channel gate of the value; a preconditioner is one of the key")
    if isinstance(source, o.Complement | o.Orthogonal) and sizes.value_heads != sizes.heads:
        raise ConfigError(
            f"{where} needs as many value heads as heads; got value_heads={sizes.value_heads}, heads={sizes.heads}"
        )


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
    if isinstance(source, Decaying) and source.projection is None:
        source = replace(source, projection=o.LowRank(None, shared=True) if operand.per == "channel" else o.Linear())
    return _settled_source(source, sizes)


def _of_kind(operand: Operand, projection: o.Map) -> o.Source:
    """The default source of the operand's kind with this projection."""
    if operand.signed:
        return o.SignedDecay(projection)
    if operand.kind is Kind.LOG_DECAY:
        return o.MambaDecay(projection=None if projection == o.Linear() else projection)
    if operand.kind in GATES:
        return o.Sigmoid(projection=projection)
    return o.Vector(projection) if isinstance(projection, o.Linear) else o.Vector(projection, conv=0, activation="none")


def _settled_source(source: o.Source, sizes: Sizes) -> o.Source:
    if not isinstance(source, Projected) or source.projection is None:
        return source
    return replace(source, projection=_settled(source.projection, sizes))


def _settled(projection: o.Map, sizes: Sizes) -> o.Map:
    if isinstance(projection, o.LowRank) and projection.rank is None:
        return replace(projection, rank=sizes.value)
    return projection


def _inputs(projection: o.Map, heads: int, dim: int) -> int:
    if isinstance(projection, o.Linear):
        return heads * dim
    rank = projection.rank or 0
    return rank if projection.shared else rank * heads
