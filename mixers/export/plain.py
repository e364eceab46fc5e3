"""Layers and models as plain JSON and back. A value of a class is `{"its_name": {field: value}}`."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any, cast

from archsearch.errors import ArchsearchError, ExportError
from archsearch.mixers.layer import options as o
from archsearch.mixers.models.options import Model

KINDS: tuple[type, ...] = (
    o.BoundedDecay,
    o.FixedDecay,
    o.Layer,
    o.Linear,
    o.LogSigmoid,
    o.LowRank,
    o.MambaDecay,
    o.Projection,
    o.Sigmoid,
    o.SignedDecay,
    o.Static,
    o.StepDecay,
    o.StepSize,
    o.Vector,
    Model,
)


def to_plain(value: Any) -> Any:
    """Options as dicts, lists and scalars."""
    kind = next((kind for kind in KINDS if type(value) is kind), None)
    if kind is not None:
        return {key_of(kind): {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(kind)}}
    if isinstance(value, Mapping):
        return {name: to_plain(each) for name, each in cast(Mapping[str, Any], value).items()}
    if isinstance(value, tuple):
        return [to_plain(each) for each in cast(tuple[Any, ...], value)]
    return value


def from_plain(data: Any, where: str) -> Any:
    """The options that `to_plain` wrote. ExportError names an unknown class or field with the nearest known one."""
    if isinstance(data, list):
        return tuple(from_plain(each, where) for each in cast(list[Any], data))
    if not isinstance(data, dict):
        return data
    given = cast(dict[str, Any], data)
    kinds = {key_of(kind): kind for kind in KINDS}
    name = next(iter(given), "")
    check_keys(given, list(kinds), where)
    return _built(kinds[name], given[name], f"{where}.{name}")


def check_keys(given: Collection[str], known: Collection[str], where: str) -> None:
    """ExportError for a key that is not known, with the nearest one."""
    for key in given:
        if key not in known:
            nearest = "".join(f"; did you mean {name}?" for name in difflib.get_close_matches(key, known, n=1))
            raise ExportError(f"{where} has the unknown key {key!r}{nearest or '.'} Known: {', '.join(known)}")


def key_of(kind: type) -> str:
    """LowRank is `low_rank`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()


def _built(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ExportError(f"{where} must hold the fields of {key_of(kind)}; got {data!r}")
    given = cast(dict[str, Any], data)
    check_keys(given, [f.name for f in dataclasses.fields(kind)], where)
    values = {name: from_plain(each, f"{where}.{name}") for name, each in given.items() if name != "operands"}
    if "operands" in given:
        named = cast(dict[str, Any], given["operands"])
        values["operands"] = {name: from_plain(each, f"{where}.operands.{name}") for name, each in named.items()}
    try:
        return kind(**values)
    except (ArchsearchError, TypeError) as error:
        raise ExportError(f"{where} is no {key_of(kind)}: {error}") from error
