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
FITTING: Mapping[Kind, tuple[type, ...]] = {
    **dict.fromkeys(VECTORS, (o.Vector, o.Projection, o.Static)),
    **dict.fromkeys(GATES, (o.Sigmoid, o.StepSize, o.Exponential)),
    Kind.LOG_DECAY: (o.MambaDecay, o.BoundedDecay, o.LogSigmoid, o.StepDecay, o.FixedDecay, o.CappedForget),
}


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
        seen = [part.name]
        while (origin := by_name[seen[-1]].origin) is not None:
            if origin not in by_name:
                raise ConfigError(f"layer.operands.{seen[-1]} is made of {origin!r}; {_takes(rule)}")
            if origin in seen:
                circle = " -> ".join([*seen, origin])
                raise ConfigError(
                    f"layer.operands go in a circle: {circle}. Give one of them a projection of the token"
                )
            seen.append(origin)
        if part.origin is not None and not _same_sort(part, by_name[part.origin]):
            kind = by_name[part.origin].operand.kind.value
            wanted = "a gate" if isinstance(part.source, o.StepDecay) else "a vector of its own space"
            raise ConfigError(f"layer.operands.{part.name} is made of {wanted}; got the {kind} {part.origin!r}")


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
        where = f"layer.operands.{operand.name}"
        raise ConfigError(f"{where} is a {operand.kind.value} and takes one of {names}; got {type(source).__name__}")
    projection: o.Map | None = getattr(source, "projection", None)
    inputs = 0 if projection is None else _inputs(projection, heads, dim)
    conv = (source.conv or 0) if isinstance(source, o.Vector) else 0
    if isinstance(source, o.Vector) and source.rotary and (dim % 2 or not operand.is_address):
        where = f"layer.operands.{operand.name}.rotary"
        raise ConfigError(f"{where} needs an address of even width; got a {operand.kind.value} of width {dim}")
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
    if (
        isinstance(source, o.MambaDecay | o.BoundedDecay | o.LogSigmoid | o.CappedForget | o.SignedDecay)
        and source.projection is None
    ):
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
    if isinstance(source, o.Linear | o.LowRank | o.Projection | o.Static | o.StepDecay | o.FixedDecay):
        return source
    projection: o.Map | None = getattr(source, "projection", None)
    return source if projection is None else replace(source, projection=_settled(projection, sizes))


def _settled(projection: o.Map, sizes: Sizes) -> o.Map:
    if isinstance(projection, o.LowRank) and projection.rank is None:
        return replace(projection, rank=sizes.value)
    return projection


def _inputs(projection: o.Map, heads: int, dim: int) -> int:
    if isinstance(projection, o.Linear):
        return heads * dim
    rank = projection.rank or 0
    return rank if projection.shared else rank * heads
