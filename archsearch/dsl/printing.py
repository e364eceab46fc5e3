"""How the language prints: every node has `render(show)`, and `show` decides how the operands inside appear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from archsearch.holes import Integer, OneOf, Uniform

Show = Callable[[Any], str]


def by_name(node: Any) -> str:
    """`node` with operands by name: `erase(e, strength=gamma)`."""
    return _shown(node, lambda operand: operand.name)


def as_code(node: Any) -> str:
    """`node` as code that stands alone: `erase(key("e"), strength=gate("gamma"))`."""
    return _shown(node, lambda operand: operand.code)


def _shown(node: Any, operand: Show) -> str:
    def show(child: Any) -> str:
        return _shown(child, operand)

    if hasattr(node, "render"):
        return node.render(show)
    if hasattr(node, "code"):
        return operand(node)
    if isinstance(node, OneOf):
        return _one_of(node, show)
    if isinstance(node, Uniform | Integer):
        return str(node)
    if isinstance(node, tuple):
        steps = [show(step) for step in node]  # pyright: ignore[reportUnknownVariableType]
        return f"({', '.join(steps)}{',' if len(steps) == 1 else ''})"
    if isinstance(node, float):
        return f"{node:g}" if float(f"{node:g}") == node and "e" not in f"{node:g}" else repr(node)
    return f'"{node}"' if isinstance(node, str) else str(node)


def _one_of(hole: OneOf, show: Show) -> str:
    name = [] if hole.name is None else [f'name="{hole.name}"']
    if hole.labels == ("no", "yes") and hole.options[0] is None:
        return f"optional({', '.join([show(hole.options[1]), *name])})"
    keyed: list[str] = []
    bare = True
    for label, option in zip(hole.labels, hole.options, strict=True):
        text = repr(option) if isinstance(option, float) else show(option)
        bare = bare and label == ("none" if option is None else str(option))
        keyed.append(text if bare else f"{label}={text}")
    return f"one_of({', '.join(keyed + name)})"
