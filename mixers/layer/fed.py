"""A rule as its layer feeds it: an address that the layer gates out of another one is written as that."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from archsearch.dsl import Operand, Rule, channel_gate
from archsearch.mixers.layer import options as o


def as_fed(rule: Rule, layer: o.Layer) -> Rule:
    """The rule with `scale * gate * u` in the place of every address that the layer makes so of an address u; the rule
    itself where there is none.

    What holds of the rule for that address alone, as that the state stays in range, may not hold for any address.
    """
    fed = {name: _made(name, source) for name, source in layer.operands.items() if isinstance(source, o.Gated)}
    known = rule.operands
    made = {
        known[name]: scale * (gate * known[of])
        for name, (scale, gate, of) in fed.items()
        if name in known and of in known and gate.name not in known
    }
    return Rule(rule.name, steps=_written(rule.steps, made)) if made else rule


def _made(name: str, source: o.Gated) -> tuple[float, Operand, str]:
    return source.scale, channel_gate(f"{name}_gate"), source.of


def _written(node: Any, made: Mapping[Operand, Any]) -> Any:
    """A part of a rule with its operands replaced."""
    if isinstance(node, Operand):
        return made.get(node, node)
    if isinstance(node, tuple):
        return tuple(_written(each, made) for each in node)  # pyright: ignore[reportUnknownVariableType]
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        parts = {field.name: _written(getattr(node, field.name), made) for field in dataclasses.fields(node)}
        return dataclasses.replace(node, **parts)
    return node
