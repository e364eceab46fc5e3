"""Holes filled: who chooses, and what was chosen.

A chooser is a function (path, hole) -> label or number. The same walk (`archsearch.holes.resolve`) serves all of them:
a mapping replays a point, an Optuna trial proposes one, chance draws one, `structures` goes through all.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeVar, cast, overload

from archsearch import holes
from archsearch.dsl import Rule
from archsearch.errors import SpaceError
from archsearch.holes import Choose, Chosen, Hole, Integer, OneOf
from archsearch.spaces.space import Point, Space

T = TypeVar("T")


class Trial(Protocol):
    """What the engine needs of a trial of Optuna."""

    def suggest_categorical(self, name: str, choices: tuple[str, ...]) -> str:
        """One of `choices`."""
        ...

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """A number in [low, high]."""
        ...

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1) -> int:
        """A whole number in [low, high]."""
        ...


@overload
def resolve(space_or_rule: Space, choices: Mapping[str, Chosen] | Choose) -> Point: ...
@overload
def resolve(space_or_rule: Rule, choices: Mapping[str, Chosen] | Choose) -> Rule: ...
def resolve(space_or_rule: Space | Rule, choices: Mapping[str, Chosen] | Choose) -> Point | Rule:
    """The holes of a rule or a space filled: a closed rule, or a point of the space.

    choices: path -> label or number, as `erase` in a bare rule and `rule/erase` in a space, or a chooser. A mapping
    needs an entry for each hole met; entries for holes in branches not taken are ignored.
    Errors: HoleError for an open hole, an unknown path, an unknown label or a number out of range.
    """
    if isinstance(space_or_rule, Space):
        return space_or_rule.resolve(_chooser(choices, space_or_rule.holes))
    if not isinstance(space_or_rule, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpaceError(f"resolve takes a Rule or a Space; got {space_or_rule!r}. A rule of the zoo is rules[name]")
    return cast(Rule, holes.resolve(space_or_rule, choices))


def suggesting(trial: Trial) -> Choose:
    """Choices proposed by a trial of Optuna."""

    def choose(path: str, hole: Hole) -> Chosen:
        if isinstance(hole, OneOf):
            return trial.suggest_categorical(path, hole.labels)
        if isinstance(hole, Integer):
            return trial.suggest_int(path, hole.low, hole.high, step=hole.step)
        return trial.suggest_float(path, hole.low, hole.high, log=hole.log)

    return choose


def at_random(source: random.Random) -> Choose:
    """Choices drawn by chance: labels and whole numbers evenly, numbers as their hole says.

    A hole met twice keeps its choice.
    """
    drawn: dict[str, Chosen] = {}

    def draw(hole: Hole) -> Chosen:
        if isinstance(hole, OneOf):
            return source.choice(hole.labels)
        if isinstance(hole, Integer):
            return source.randrange(hole.low, hole.high + 1, hole.step)
        if hole.log:
            return math.exp(source.uniform(math.log(hole.low), math.log(hole.high)))
        return source.uniform(hole.low, hole.high)

    def choose(path: str, hole: Hole) -> Chosen:
        if path not in drawn:
            drawn[path] = draw(hole)
        return drawn[path]

    return choose


def middle(hole: Hole) -> Chosen:
    """The plainest choice: a hole's first option or smallest whole number, the middle of a range (of its logarithm if
    log).
    """
    if isinstance(hole, OneOf):
        return hole.labels[0]
    if isinstance(hole, Integer):
        return hole.low
    return math.sqrt(hole.low * hole.high) if hole.log else (hole.low + hole.high) / 2


def structures(fill: Callable[[Choose], T]) -> Iterator[tuple[dict[str, Chosen], T]]:
    """Every way to fill the holes that have finitely many options, with the choices made; a range is filled by its
    middle.

    fill: what takes a chooser, as `space.resolve`. Goes through the branches, not through all combinations of paths.
    """
    pending: list[dict[str, Chosen]] = [{}]
    while pending:
        given = pending.pop()
        met: dict[str, Chosen] = {}

        def choose(path: str, hole: Hole, given: dict[str, Chosen] = given, met: dict[str, Chosen] = met) -> Chosen:
            if path not in met:
                options = _options(hole)
                met[path] = given.get(path, options[0])
                if path not in given:
                    pending.extend({**met, path: option} for option in reversed(options[1:]))
            return met[path]

        value = fill(choose)
        yield met, value


def _options(hole: Hole) -> tuple[Chosen, ...]:
    if isinstance(hole, OneOf):
        return hole.labels
    if isinstance(hole, Integer):
        return tuple(range(hole.low, hole.high + 1, hole.step))
    return (middle(hole),)


def _chooser(choices: Mapping[str, Chosen] | Choose, known: Mapping[str, Hole]) -> Choose:
    """A mapping as a chooser; HoleError for a path that no hole has."""
    return choices if callable(choices) else holes.replaying(choices, known)


def find_rule(space: Space, rule: Rule) -> dict[str, Chosen] | None:
    """The plainest choices that make the space's rule equal to `rule` (same hash); None if no structure does.

    Ranges inside the rule are filled by their middle. Holes outside the rule are not looked at.
    """
    for choices, candidate in structures(space.resolve_rule):
        if candidate.hash == rule.hash:
            return choices
    return None


def baseline(space: Space, name: str, rule: Rule) -> dict[str, Chosen]:
    """The point of a named rule: its structure, and the plainest choice in every other hole.

    Errors: SpaceError if the rule is no point of the space.
    """
    structure = find_rule(space, rule)
    if structure is None:
        raise SpaceError(
            f"a baseline must be a point of the space; no choice of its holes makes {name}: "
            f"widen the space or leave {name} out of baselines"
        )

    def choose(path: str, hole: Hole) -> Chosen:
        return structure.get(path, middle(hole))

    return dict(space.resolve(choose).choices)
