"""A space as plain data, as YAML holds it: values, and holes wherever a value may stand.

    {one_of: [0, 4]}                      {one_of: {short: 4, long: 16}, name: conv}     {optional: 64}
    {uniform: [0.1, 0.9]}                 {log_uniform: [1e-3, 1e-2]}                    {integer: [2, 8, 2]}

Options that are lists or mappings need labels. `name` replaces the last part of the hole's path.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from archsearch.errors import ArchsearchError, ConfigError, SpaceError
from archsearch.holes import as_word, integer, is_label, log_uniform, one_of, optional, uniform
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.models.options import Model
from archsearch.spaces.options import Budget, Training
from archsearch.spaces.rule_text import read_rule_text
from archsearch.spaces.space import Space
from archsearch.typed_data import NOTHING, Read, from_plain

T = TypeVar("T")
RANGES: Mapping[str, Callable[..., Any]] = {"uniform": uniform, "log_uniform": log_uniform, "integer": integer}
KINDS = ("one_of", "optional", *RANGES)


@dataclasses.dataclass(frozen=True, slots=True)
class _SpaceText:
    """The keys of a space in YAML."""

    rule: Any
    model: Model = dataclasses.field(default_factory=Model)
    layer: Layer = dataclasses.field(default_factory=Layer)
    training: Training = dataclasses.field(default_factory=Training)
    budget: Budget = dataclasses.field(default_factory=Budget)


def read_space(data: object, where: str) -> Space:
    """The space that plain data describes; `where` names their source in errors.

    rule: a name of the zoo, path/to/file.py[:NAME], the text of a rule, a mapping of its steps
    (`archsearch.spaces.rule_text`), or one_of of them. Errors, in one line: ConfigError, HoleError, RuleError,
    SpaceError.
    """
    text = with_holes(_SpaceText, data, where)
    try:
        parts = {f.name: getattr(text, f.name) for f in dataclasses.fields(text)}
        return Space(**{**parts, "rule": read_rule_text(text.rule, where)})
    except SpaceError as error:
        raise SpaceError(f"{error} (in {where})") from error


def with_holes(kind: type[T], data: object, where: str) -> T:
    """`from_plain` for a dataclass whose fields may hold holes."""

    def instead(hint: object, given: object, key: str, read: Read) -> object:
        mapping = cast(Mapping[str, object], given) if isinstance(given, Mapping) else dict[str, object]()
        if hint is Any or not any(kind in mapping for kind in KINDS):
            return NOTHING
        try:
            return _hole(mapping, lambda value, at: read(hint, value, at), key)
        except ConfigError:
            raise
        except ArchsearchError as error:
            raise type(error)(f"{key}: {error} (in {where})") from error
        except _BadHole as fault:
            raise ConfigError(f"{key} {fault} in {where}") from fault

    return from_plain(kind, data, where, instead)


class _BadHole(Exception):
    """A hole that is spelled wrongly: what must hold and what came."""


def _hole(given: Mapping[str, object], read: Callable[[object, str], object], key: str) -> object:
    """The hole that a mapping spells."""
    kind, *others = [name for name in given if name in KINDS]
    extra = [*others, *(name for name in given if name not in (kind, "name"))]
    if extra:
        raise _BadHole(f"must be one hole, {{{kind}: ...}} with a name if you like; got {extra[0]!r} beside {kind}")
    name = given.get("name")
    if name is not None and not isinstance(name, str):
        raise _BadHole(f"must have a name that is text; got {name!r}")
    argument, place = given[kind], f"{key}.{kind}"
    if kind == "optional":
        return optional(read(argument, place), name=name)
    if kind == "one_of":
        return _one_of(argument, read, place, name)
    return _range(kind, argument, read, place, name)


def _one_of(argument: object, read: Callable[[object, str], object], place: str, name: str | None) -> object:
    if isinstance(argument, Mapping):
        options = {str(label): option for label, option in cast(Mapping[object, object], argument).items()}
        if "name" in options:
            raise _BadHole("must not label an option name, which is the hole's own")
        wrong = next((label for label in options if not is_label(label)), None)
        if wrong is not None:
            raise _BadHole(f"must have labels of letters, digits and _; got {wrong!r}; write {as_word(wrong)}:")
        return one_of(**{label: read(option, f"{place}.{label}") for label, option in options.items()}, name=name)
    if not isinstance(argument, list | tuple) or not argument:
        raise _BadHole(f"must be one_of: [a, b] or one_of: {{first: a, second: b}}; got {argument!r}")
    entries = cast(Sequence[object], argument)
    if any(isinstance(entry, Mapping | list | tuple) for entry in entries):
        raise _BadHole("has options that are lists or mappings; label them: one_of: {first: ..., second: ...}")
    return one_of(*(read(entry, f"{place}[{i}]") for i, entry in enumerate(entries)), name=name)


def _range(kind: str, argument: object, read: Callable[[object, str], object], place: str, name: str | None) -> object:
    """A range whose ends the field could hold: a whole number's field takes no `uniform`."""
    most = 3 if kind == "integer" else 2
    numbers = list(cast(Sequence[object], argument)) if isinstance(argument, list | tuple) else []
    if not 2 <= len(numbers) <= most:
        wanted = "[low, high] or [low, high, step]" if kind == "integer" else "[low, high]"
        raise _BadHole(f"must be {kind}: {wanted}; got {argument!r}")
    if kind == "integer" or any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
        return RANGES[kind](*numbers, name=name)
    middle = cast(float, numbers[0]) + 0.5 * (cast(float, numbers[1]) - cast(float, numbers[0]))
    if not isinstance(read(middle, place), float):
        raise _BadHole(f"takes no {kind} numbers; use integer: [low, high]")
    return RANGES[kind](*numbers, name=name)
