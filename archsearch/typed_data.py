"""Plain data (what YAML and JSON hold) to typed dataclasses and back, with errors that name the key.

A field may be a number, text, bool, None, an Enum (by its value), a dataclass, a union, `tuple[X, ...]`, `list[X]` or
`Mapping[str, X]`. Of a union of several dataclasses the one meant is named by a single key: `{low_rank: {rank: 16}}`.
"""

import dataclasses
import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar, cast

from archsearch.errors import ArchsearchError, ConfigError

T = TypeVar("T")

Read = Callable[[object, object, str], object]
"""(type, plain data, dotted key) to a value."""

Instead = Callable[[object, object, str, Read], object]
"""(type, plain data, dotted key, how the rest is read) to a value that stands in for one of the type, as a hole does;
or `NOTHING`, for what is read as it stands.
"""

NOTHING = object()

LARGEST = 2**63 - 1
"""Of whole numbers, either way."""

SHOWN_PLACES = 3
"""Keys of one name that are suggested for one that stands in the wrong place."""

_SIMPLE: dict[object, str] = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
    Path: "a path",
}


def from_plain(kind: type[T], data: object, where: str, instead: Instead | None = None) -> T:
    """Build a dataclass of `kind` from nested dicts, lists and scalars; `where` names their source in errors. instead:
    asked first about every value.

    Raises ConfigError for unknown or missing keys and wrong types; errors of a dataclass's own checks keep their class.
    """
    return cast(T, _Reader(kind, where, instead).value(kind, data, ""))


def to_plain(value: object) -> object:
    """The inverse of `from_plain`: dataclasses as dicts, enums as their values, tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(_of_union(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in cast(Mapping[object, object], value).items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in cast(Sequence[object], value)]
    return cast(object, value)


def check_fields(options: object, key: str, is_open: Callable[[object], bool] = lambda value: False) -> None:
    """Whether each field of a dataclass holds what its annotation says, for values that were not read by `from_plain`.
    key: what the whole is called in errors. is_open: of values that pass anywhere, as holes do. ConfigError.
    """
    for name, hint in _hints(type(options)).items():
        value = getattr(options, name)
        if not _holds(hint, value, is_open):
            raise ConfigError(f"{key}.{name} must be {_typed(hint)}; got {_shown(value)}")


def class_key(kind: type) -> str:
    """The key by which YAML names a class: LowRank is `low_rank`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()


def known_keys(kind: type, prefix: str = "") -> list[str]:
    """Every dotted key that a file read as `kind` may hold."""
    keys: list[str] = []
    for name, hint in _hints(kind).items():
        keys.append(prefix + name)
        inner = _dataclasses_of(hint)
        if len(inner) == 1:
            keys += known_keys(inner[0], f"{prefix}{name}.")
    return keys


def configuration_words(data: object, path: str) -> str:
    """Of a file that holds what a study or a trial is asked, in words which command takes it; empty for other data."""
    names = set(cast(Mapping[object, object], data)) if isinstance(data, Mapping) else set[object]()
    place = quote(path)
    if "tasks" not in names:
        return ""
    if "space" in names:
        return (
            f"{path} is a study's configuration: archsearch study check {place} says what it would train, "
            f"archsearch study run {place} trains it"
        )
    return f"{path} is a trial's configuration: archsearch train {place}" if "rule" in names else ""


def _of_union(owner: object, name: str) -> object:
    """The field's value, wrapped in its class's key where the annotation leaves several classes open."""
    return _wrapped(getattr(owner, name), _hints(type(owner))[name])


def _wrapped(value: object, hint: object) -> object:
    if len(_dataclasses_of(hint)) > 1 and hasattr(value, "__dataclass_fields__"):
        return {class_key(type(value)): value}
    if isinstance(value, Mapping) and typing.get_origin(hint) is not None:
        inner = _mapping_value(hint)
        return {str(k): _wrapped(v, inner) for k, v in cast(Mapping[object, object], value).items()}
    return cast(object, value)


class _Reader:
    """One walk over plain data; holds what errors need: the root's keys and the source's name."""

    def __init__(self, root: type, where: str, instead: Instead | None) -> None:
        self.root = root
        self.where = where
        self.instead = instead

    def value(self, hint: object, data: object, key: str) -> object:
        found = NOTHING if self.instead is None else self.instead(hint, data, key, self.value)
        return self.plain(hint, data, key) if found is NOTHING else found

    def plain(self, hint: object, data: object, key: str) -> object:
        origin = typing.get_origin(hint)
        if origin in (typing.Union, types.UnionType):
            return self.union(typing.get_args(hint), data, key)
        if origin is typing.Literal:
            return self.choice(typing.get_args(hint), data, key)
        if origin is tuple or origin is list or (isinstance(origin, type) and issubclass(origin, Sequence)):
            return self.items(hint, data, key)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self.mapping(_mapping_value(hint), data, key)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return self.dataclass(hint, data, key)
        return self.scalar(hint, data, key)

    def dataclass(self, kind: type, data: object, key: str) -> object:
        if not isinstance(data, Mapping):
            raise self.wrong("a mapping of its options", data, key)
        given = {str(name): item for name, item in cast(Mapping[object, object], data).items()}
        hints = _hints(kind)
        for name, item in given.items():
            if name not in hints:
                raise self.unknown(name, item, key, list(hints))
        values = {name: self.value(hints[name], item, _join(key, name)) for name, item in given.items()}
        for field in dataclasses.fields(kind):
            if field.name not in values and _required(field):
                raise ConfigError(f"{_join(key, field.name)} is missing in {self.where}")
        try:
            return kind(**values)
        except ArchsearchError as error:
            said = str(error)
            raise type(error)(said if self.where in said else f"{said} (in {self.where})") from error

    def union(self, options: tuple[object, ...], data: object, key: str) -> object:
        if data is None and type(None) in options:
            return None
        kinds = [kind for option in options for kind in _dataclasses_of(option)]
        if isinstance(data, Mapping) and kinds:
            return self.one_class(kinds, cast(Mapping[object, object], data), key)
        return self.first_fitting(options, cast(object, data), key)

    def first_fitting(self, options: tuple[object, ...], data: object, key: str) -> object:
        for option in options:
            if option is not type(None):
                try:
                    return self.value(option, data, key)
                except ConfigError:
                    continue
        raise self.wrong(" or ".join(dict.fromkeys(_words(option) for option in options)), data, key)

    def one_class(self, kinds: list[type], data: Mapping[object, object], key: str) -> object:
        if len(kinds) == 1:
            return self.dataclass(kinds[0], data, key)
        names = {class_key(kind): kind for kind in kinds}
        if len(data) != 1 or str(next(iter(data))) not in names:
            raise self.wrong(f"a mapping with one key of {', '.join(sorted(names))}", dict(data), key)
        (name, options), *_ = data.items()
        return self.dataclass(names[str(name)], {} if options is None else options, _join(key, str(name)))

    def choice(self, options: tuple[object, ...], data: object, key: str) -> object:
        if data not in options:
            raise self.wrong(_one_of([str(option) for option in options], data), data, key)
        return data

    def items(self, hint: object, data: object, key: str) -> object:
        if not isinstance(data, (list, tuple)):
            raise self.wrong("a list", data, key)
        args = typing.get_args(hint)
        entries = cast(Sequence[object], data)
        fixed = typing.get_origin(hint) is tuple and Ellipsis not in args
        if fixed and len(args) != len(entries):
            raise self.wrong(f"a list of {len(args)}", entries, key)
        hints = args if fixed else (args[0],) * len(entries)
        values = [self.value(h, item, f"{key}[{i}]") for i, (h, item) in enumerate(zip(hints, entries, strict=True))]
        return values if typing.get_origin(hint) is list else tuple(values)

    def mapping(self, hint: object, data: object, key: str) -> object:
        if not isinstance(data, Mapping):
            raise self.wrong("a mapping", data, key)
        return {str(k): self.value(hint, v, _join(key, str(k))) for k, v in cast(Mapping[object, object], data).items()}

    def scalar(self, hint: object, data: object, key: str) -> object:
        if hint is Any or hint is object:
            return data
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self.enum(hint, data, key)
        if hint is Path and isinstance(data, str) and data and "\0" not in data:
            return Path(data)
        if hint in (int, float) and isinstance(data, int | float) and not isinstance(data, bool):
            return self.number(hint, data, key)
        if hint in (bool, str) and type(data) is hint:
            return cast(object, data)
        raise self.wrong(_words(cast(object, hint)), data, key)

    def number(self, hint: object, data: float, key: str) -> float:
        """Whole numbers as they are and where they are written with a point; 64 bits hold every one of them."""
        if isinstance(data, float) and not math.isfinite(data):
            raise self.wrong("a finite number" if hint is float else _words(int), data, key)
        if not -LARGEST <= data <= LARGEST and (hint is int or isinstance(data, int)):
            raise self.wrong("a number that 64 bits hold", data, key)
        if hint is int and not float(data).is_integer():
            raise self.wrong(_words(int), data, key)
        return int(data) if hint is int else float(data)

    def enum(self, kind: type[Enum], data: object, key: str) -> object:
        for member in kind:
            if member.value == data:
                return member
        raise self.wrong(_one_of([str(member.value) for member in kind], data), data, key)

    def wrong(self, needed: str, data: object, key: str) -> ConfigError:
        name = key or "the whole"
        return ConfigError(f"{name} must be {needed}; got {_shown(data)} in {self.where}")

    def unknown(self, name: str, item: object, key: str, siblings: list[str]) -> ConfigError:
        path = _join(key, name)
        while isinstance(item, Mapping) and item:
            inner, item = next(iter(cast(Mapping[object, object], item).items()))
            path = _join(path, str(inner))
        known = known_keys(self.root)
        near = difflib.get_close_matches(path, known, n=1, cutoff=0.75)
        near = near or [each for each in known if each.rpartition(".")[2] == name][:SHOWN_PLACES]
        near = near or [_join(key, match) for match in difflib.get_close_matches(name, siblings, n=1)]
        advice = f"did you mean {' or '.join(near)}?" if near else f"known keys here: {', '.join(sorted(siblings))}"
        return ConfigError(f"unknown key {path} in {self.where}; {advice}")


@functools.cache
def _hints(kind: type) -> dict[str, object]:
    names = {field.name for field in dataclasses.fields(kind) if field.init}
    return {name: hint for name, hint in typing.get_type_hints(kind).items() if name in names}


def _holds(hint: object, value: object, is_open: Callable[[object], bool]) -> bool:
    """Whether a value is of an annotated type; a whole number is a number, and true or false is neither."""
    if is_open(value) or hint is Any or hint is object:
        return True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_holds(each, value, is_open) for each in args)
    if origin is typing.Literal:
        return value in args
    if isinstance(origin, type) and issubclass(origin, Mapping):
        # Values of a mapping are told of by those that know what each key takes.
        keys = cast(Mapping[object, object], value) if isinstance(value, Mapping) else None
        return keys is not None and all(isinstance(key, str) for key in keys)
    if origin in (tuple, list):
        items = cast(Sequence[object], value) if isinstance(value, origin) else None
        return items is not None and all(_holds(args[0], item, is_open) for item in items)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float if hint is float else cast(type, hint))


def _typed(hint: object) -> str:
    """What a value must be: a member of an enumeration, a dataclass by its name."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_typed(each) for each in args))
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin in (tuple, list):
        return f"a {cast(type, origin).__name__}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(map(str, hint))}"
    return hint.__name__ if isinstance(hint, type) and dataclasses.is_dataclass(hint) else _words(cast(object, hint))


def _dataclasses_of(hint: object) -> list[type]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [kind for option in typing.get_args(hint) for kind in _dataclasses_of(option)]
    return [hint] if isinstance(hint, type) and dataclasses.is_dataclass(hint) else []


def _mapping_value(hint: object) -> object:
    args = typing.get_args(hint)
    return args[1] if len(args) == 2 else object


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _one_of(names: list[str], data: object) -> str:
    nearest = difflib.get_close_matches(str(data), names, n=len(names), cutoff=0.0)
    return f"one of {', '.join(nearest or names)}"


def _shown(data: object) -> str:
    text = repr(data)
    return text if len(text) <= 60 else text[:57] + "..."


def _words(hint: object) -> str:
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(str(member.value) for member in hint)}"
    if typing.get_origin(hint) in (tuple, list):
        return "a list"
    return "a mapping"
