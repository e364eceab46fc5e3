"""Text of options that is equal for equal options, and the same as code that makes them."""

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any, cast

from archsearch.dsl import Rule
from archsearch.holes import OneOf, as_label, is_hole


def code(value: Any) -> str:
    """A tree of frozen options as code: constructors with the fields that differ from their defaults."""
    if isinstance(value, OneOf):
        return _one_of(value)
    if is_hole(value) or isinstance(value, Rule):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told = [f"{f.name}={code(getattr(value, f.name))}" for f in dataclasses.fields(value) if _is_told(value, f)]
        return f"{type(value).__name__}({', '.join(told)})"
    if isinstance(value, Mapping):
        items = sorted(cast(Mapping[str, Any], value).items())
        return "{" + ", ".join(f"{key!r}: {code(item)}" for key, item in items) + "}"
    if isinstance(value, tuple):
        parts = [code(item) for item in cast(tuple[Any, ...], value)]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    return repr(value.value if isinstance(value, Enum) else value)


def _one_of(hole: OneOf) -> str:
    """Options by their labels, those that label themselves without."""
    named = [] if hole.name is None else [f"name={hole.name!r}"]
    if hole.labels == ("no", "yes") and hole.options[0] is None:
        return f"optional({', '.join([code(hole.options[1]), *named])})"
    pairs = zip(hole.labels, hole.options, strict=True)
    told = [code(option) if label == as_label(option) else f"{label}={code(option)}" for label, option in pairs]
    return f"one_of({', '.join(told + named)})"


def canonical_text(value: Any) -> str:
    """`code` with numbers to 6 significant digits, a rule as its hash, and without the names of operands."""
    if isinstance(value, Rule):
        return value.hash
    if isinstance(value, float):
        return f"{value:.6g}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told = [f for f in dataclasses.fields(value) if f.name != "operands" and _is_told(value, f)]
        return (
            f"{type(value).__name__}({', '.join(f'{f.name}={canonical_text(getattr(value, f.name))}' for f in told)})"
        )
    if isinstance(value, tuple):
        return f"({', '.join(canonical_text(item) for item in cast(tuple[Any, ...], value))})"
    return repr(value.value if isinstance(value, Enum) else value)


def _is_told(owner: Any, option: dataclasses.Field[Any]) -> bool:
    """Whether a field differs from its default."""
    value = getattr(owner, option.name)
    if option.default_factory is not dataclasses.MISSING:
        return bool(value != option.default_factory())
    return option.default is dataclasses.MISSING or bool(value != option.default)
