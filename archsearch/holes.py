"""Holes: places in a rule, a layer or an option where a search space leaves a value open.

A hole stands wherever a value stands; an option may hold further holes. `resolve` fills a tree of frozen dataclasses,
tuples and mappings in one walk, outermost first, fields in order. Holes have paths: `residual=fixed/lam` is the hole of
field `lam` inside the option `fixed` of the hole `residual`.
"""

from __future__ import annotations

import dataclasses
import itertools
import keyword
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from archsearch.errors import HoleError

LARGEST_CHOICE = 100_000
"""Values of one hole that are counted out."""

Chosen = str | int | float
Choose = Callable[[str, "Hole"], Chosen]


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several options, chosen by label."""

    labels: tuple[str, ...]
    options: tuple[Any, ...]
    name: str | None = None

    def __str__(self) -> str:
        keys = [f"{label}={as_label(option)}" for label, option in zip(self.labels, self.options, strict=True)]
        return f"one_of({', '.join(keys + _name(self.name))})"


@dataclass(frozen=True, slots=True)
class Uniform:
    """A number between `low` and `high`, uniform in the number or in its logarithm."""

    low: float
    high: float
    log: bool
    name: str | None = None

    def __str__(self) -> str:
        function = "log_uniform" if self.log else "uniform"
        return f"{function}({', '.join([repr(self.low), repr(self.high), *_name(self.name)])})"


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number low, low + step, ..., at most `high`."""

    low: int
    high: int
    step: int = 1
    name: str | None = None

    def __str__(self) -> str:
        return f"integer({', '.join([str(self.low), str(self.high), str(self.step), *_name(self.name)])})"


Hole = OneOf | Uniform | Integer


def one_of(*options: Any, name: str | None = None, **labelled: Any) -> Any:
    """One of `options`. A keyword labels its option; a positional one is labelled by its text. `name` replaces the last
    part of the path.

    Errors: HoleError for no options, a label twice, a label or name that a path or a rule's text could not hold.
    """
    for label in labelled:
        if not is_label(label):
            raise HoleError(
                f"a label of one_of must be an identifier; got {label!r}. Write one_of(first=..., second=...)"
            )
    labels = (*(as_label(option) for option in options), *labelled)
    if not labels:
        raise HoleError("one_of needs at least one option; got none. Write one_of(a, b) or one_of(first=a, second=b)")
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise HoleError(
            f"the options of one_of need different labels; got {twice[0]!r} twice. "
            "Label them: one_of(first=..., second=...)"
        )
    return OneOf(labels, (*options, *labelled.values()), _named(name))


def is_label(text: str) -> bool:
    """Whether an option can be labelled so: paths and the text of a rule hold it."""
    return text.isidentifier() and not keyword.iskeyword(text)


def as_word(text: str) -> str:
    """A label near `text`."""
    word = re.sub(r"\W+", "_", text)
    return word if is_label(word) else f"option_{word}".rstrip("_")


def optional(option: Any, *, name: str | None = None) -> Any:
    """`option` or nothing: labels `no` and `yes`."""
    return OneOf(("no", "yes"), (None, option), _named(name))


def uniform(low: float, high: float, *, name: str | None = None) -> Any:
    """A number between `low` and `high`."""
    return Uniform(*_range("uniform", low, high), log=False, name=_named(name))


def log_uniform(low: float, high: float, *, name: str | None = None) -> Any:
    """A number between `low` and `high`, uniform in its logarithm."""
    _range("log_uniform", low, high, positive=True)
    return Uniform(low, high, log=True, name=_named(name))


def integer(low: int, high: int, step: int = 1, *, name: str | None = None) -> Any:
    """A whole number from `low` to `high` in steps of `step`."""
    _range("integer", low, high)
    if any(type(number) is not int for number in (low, high, step)) or step < 1:
        raise HoleError(
            f"integer needs whole numbers and a step of at least 1; got low={low}, high={high}, step={step}"
        )
    values = len(range(low, high + 1, step))
    if values > LARGEST_CHOICE:
        raise HoleError(f"integer takes at most {LARGEST_CHOICE:,} values; got {values:,}; raise its step")
    return Integer(low, high, step, _named(name))


def is_hole(value: Any) -> bool:
    """Whether `value` is a hole itself."""
    return isinstance(value, OneOf | Uniform | Integer)


def has_holes(tree: Any) -> bool:
    """Whether a hole stands anywhere in `tree`."""
    return is_hole(tree) or any(has_holes(child) for _, _, child in _children(tree))


def holes(tree: Any) -> dict[str, Hole]:
    """Every hole of `tree` by path, in the order in which `resolve` meets them."""
    found: dict[str, Hole] = {}
    for _, path, hole in _labelled(tree):
        found.setdefault(path, hole)
    return found


def ways(tree: Any, decided: Collection[str] = ()) -> int:
    """In how many ways the holes of `tree` can be filled; a range of numbers counts as one, and so do the holes at the
    paths `decided`, with all in their options.
    """
    paths = {position: path for position, path, _ in _labelled(tree)}
    return _ways(tree, (), paths, frozenset(decided))


def _ways(node: Any, position: tuple[Any, ...], paths: Mapping[Any, str], decided: frozenset[str]) -> int:
    """Of the holes below `position`; those at `decided` paths are filled already."""
    near = {paths[place]: (place, hole) for place, hole in reversed(list(_nearest(node, position)))}
    open_holes = {path: each for path, each in near.items() if path not in decided}
    decided |= open_holes.keys()
    return math.prod(_ways_of(hole, place, paths, decided) for place, hole in open_holes.values())


def _ways_of(hole: Hole, position: tuple[Any, ...], paths: Mapping[Any, str], decided: frozenset[str]) -> int:
    if isinstance(hole, OneOf):
        options = zip(hole.labels, hole.options, strict=True)
        return sum(_ways(option, (*position, label), paths, decided) for label, option in options)
    return len(range(hole.low, hole.high + 1, hole.step)) if isinstance(hole, Integer) else 1


def _nearest(node: Any, position: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Hole]]:
    """The holes that no other hole holds, with their positions."""
    if is_hole(node):
        yield position, node
        return
    for key, _, child in _children(node):
        yield from _nearest(child, (*position, key))


def resolve(tree: Any, choose: Choose | Mapping[str, Chosen]) -> Any:
    """`tree` with every hole filled. A mapping must name a choice for each hole met, and no other path of the tree's
    holes is required.

    Errors: HoleError for a missing or unknown path, an unknown label, or a number outside its range.
    """
    paths = {position: path for position, path, _ in _labelled(tree)}
    answer = replaying(cast("Mapping[str, Chosen]", choose), paths.values()) if isinstance(choose, Mapping) else choose
    return _fill(tree, (), paths, _once(answer))


def _once(choose: Choose) -> Choose:
    """A hole that stands at several places is chosen at the first."""
    chosen: dict[str, Chosen] = {}

    def first(path: str, hole: Hole) -> Chosen:
        if path not in chosen:
            chosen[path] = choose(path, hole)
        return chosen[path]

    return first


def replaying(choices: Mapping[str, Chosen], paths: Iterable[str]) -> Choose:
    """A mapping as a chooser for the holes at `paths`. HoleError for a path that no hole has; when a hole is met, for
    one without a choice or with a label that it does not have.
    """
    known = dict.fromkeys(paths)
    for path in choices:
        if path not in known:
            holes_are = f"the holes are {_list(known)}" if known else "there are none to fill. Leave it out"
            raise HoleError(f"no hole is called {path!r}; {holes_are}")

    def choose(path: str, hole: Hole) -> Chosen:
        if path not in choices:
            raise HoleError(f"hole {path!r} is open; give it {domain(hole)}")
        if isinstance(hole, OneOf) and choices[path] not in hole.labels:
            raise HoleError(f"hole {path!r} takes {domain(hole)}; got {choices[path]!r}")
        return choices[path]

    return choose


def _fill(node: Any, position: tuple[Any, ...], paths: Mapping[Any, str], choose: Choose) -> Any:
    if not is_hole(node):
        parts = [(key, _fill(child, (*position, key), paths, choose)) for key, _, child in _children(node)]
        return _rebuilt(node, parts) if parts and has_holes(node) else node
    hole = cast(Hole, node)
    path = paths[position]
    chosen = choose(path, hole)
    if not isinstance(hole, OneOf):
        return _number(path, hole, chosen)
    if chosen not in hole.labels:
        raise HoleError(f"hole {path!r} takes {domain(hole)}; got {chosen!r}")
    label = str(chosen)
    return _fill(hole.options[hole.labels.index(label)], (*position, label), paths, choose)


def _number(path: str, hole: Uniform | Integer, chosen: Chosen) -> float | int:
    whole = isinstance(hole, Integer)
    number = isinstance(chosen, int) and not isinstance(chosen, bool) if whole else isinstance(chosen, int | float)
    if (
        not number
        or not hole.low <= cast(float, chosen) <= hole.high
        or (whole and (cast(int, chosen) - hole.low) % hole.step)
    ):
        raise HoleError(f"hole {path!r} takes {domain(hole)}; got {chosen!r}")
    return cast(int, chosen) if whole else float(chosen)


def domain(hole: Hole) -> str:
    """What a hole takes, in words."""
    if isinstance(hole, OneOf):
        return f"one of {_list(hole.labels)}"
    if isinstance(hole, Integer):
        return f"a whole number from {hole.low} to {hole.high} in steps of {hole.step}"
    return f"a number from {hole.low} to {hole.high}"


def _labelled(tree: Any) -> list[tuple[tuple[Any, ...], str, Hole]]:
    """(position, path, hole) of every hole. One hole object used twice in a branch keeps its first path; unnamed holes
    that collide get ordinals.
    """
    rows: list[tuple[tuple[Any, ...], str, Hole]] = []
    taken: dict[str, Hole] = {}
    met: list[tuple[Hole, tuple[str, ...], str]] = []

    def path_of(hole: Hole, prefix: tuple[str, ...], last: str | None, branch: tuple[str, ...]) -> str:
        for known, other, path in met:
            if known is hole and branch[: len(other)] == other:
                return path
        path = "/".join((*prefix, hole.name or last or "value"))
        if path not in taken or (hole.name is not None and taken[path] == hole):
            return path
        if hole.name is not None:
            raise HoleError(f"two different holes are called {path!r}; give one of them another name=")
        numbered = (f"{path}{ordinal}" for ordinal in itertools.count(2))
        return next(p for p in numbered if p not in taken)

    def visit(
        node: Any, position: tuple[Any, ...], prefix: tuple[str, ...], last: str | None, branch: tuple[str, ...]
    ) -> None:
        if not is_hole(node):
            inner = prefix if last is None else (*prefix, last)
            for key, segment, child in _children(node):
                visit(child, (*position, key), inner, segment, branch)
            return
        hole = cast(Hole, node)
        path = path_of(hole, prefix, last, branch)
        taken[path] = hole
        met.append((hole, branch, path))
        rows.append((position, path, hole))
        if isinstance(hole, OneOf):
            for label, option in zip(hole.labels, hole.options, strict=True):
                option_path = f"{path}={label}"
                visit(option, (*position, label), (option_path,), None, (*branch, option_path))

    visit(tree, (), (), None, ())
    return rows


def _children(node: Any) -> Iterator[tuple[Any, str | None, Any]]:
    """(key, path segment or None, child) of a node that can hold holes."""
    if dataclasses.is_dataclass(node) and not isinstance(node, type) and not is_hole(node):
        for field in dataclasses.fields(node):
            yield field.name, field.name if field.metadata.get("path", True) else None, getattr(node, field.name)
    elif isinstance(node, tuple):
        for index, child in enumerate(cast(tuple[Any, ...], node)):
            yield index, None, child
    elif isinstance(node, Mapping):
        for key, child in cast(Mapping[Any, Any], node).items():
            yield key, str(key), child


def _rebuilt(node: Any, parts: list[tuple[Any, Any]]) -> Any:
    if isinstance(node, tuple):
        return tuple(child for _, child in parts if child is not None)
    if isinstance(node, Mapping):
        return dict(parts)
    return dataclasses.replace(node, **dict(parts))


def _range(what: str, low: float, high: float, *, positive: bool = False) -> tuple[float, float]:
    if any(isinstance(end, bool) or not isinstance(end, int | float) for end in (low, high)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise HoleError(f"{what} needs two numbers; got low={low!r}, high={high!r}")
    if positive and low <= 0:
        raise HoleError(f"{what} needs a positive range; got low={low}. Use uniform, or a low above 0")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise HoleError(f"{what} needs finite low < high; got low={low}, high={high}")
    return low, high


def _named(name: str | None) -> str | None:
    """`name`, which is a part of a path and stands in quotes in a rule's text."""
    if name is not None and (not isinstance(name, str) or not name or set(name) & set("/=\"'\\\n")):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise HoleError(f"a hole's name must be text without / = quotes or backslashes; got {name!r}")
    return name


def as_label(option: Any) -> str:
    """What an option without a label of its own is called."""
    return "none" if option is None else str(option.value if isinstance(option, Enum) else option)


def _name(name: str | None) -> list[str]:
    return [] if name is None else [f"name={name!r}"]


def _list(labels: Any) -> str:
    return ", ".join(repr(label) for label in dict.fromkeys(labels))
