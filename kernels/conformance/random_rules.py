"""Random rules over the whole grammar, the same from the same seed on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, Protocol, TypeVar

from archsearch.dsl import (
    Operand,
    Rule,
    bonus,
    channel_gate,
    decay,
    delta_write,
    erase,
    gate,
    key,
    log_decay,
    query,
    query_feedback,
    read,
    simultaneous,
    value,
    write,
)
from archsearch.dsl.primitives import DeltaWrite, Erase, Read, Write

Option = TypeVar("Option")


class Chance(Protocol):
    """Where decisions come from: `random.Random`, or whoever wants to shrink them. Options stand with the simplest
    first, and 0.45 is on the simpler side of every comparison with `random()`, all at multiples of 0.05.
    """

    def choice(self, seq: Sequence[Option], /) -> Option:
        """One of the options."""
        ...

    def randint(self, a: int, b: int, /) -> int:
        """A whole number from a to b, both included."""
        ...

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


NUMBERS = (0.25, 0.5, -0.5, 1.0)
NORMALISERS = (1.0, 0.5, 0.25)
KEYS = tuple(key(name) for name in ("k", "k2", "e"))
QUERIES = (query("q"), query("p"))
VALUES = (value("v"), value("v2"))
GATES = tuple(gate(name) for name in ("beta", "gamma", "lam"))
KEY_GATES = (channel_gate("b"), channel_gate("c"))
VALUE_GATE = channel_gate("w", of="value")
DECAYS = (
    log_decay("g"),
    log_decay("h"),
    log_decay("gs", signed=True),
    log_decay("gc", per="channel"),
    log_decay("hc", per="channel"),
    log_decay("gcs", per="channel", signed=True),
)
Substep = DeltaWrite | Erase | Write


def random_rule(seed: int) -> Rule:
    """A closed rule: 1 to 4 substeps, some in groups, up to 3 decays and the read anywhere; small coefficients keep
    most of them tame.
    """
    return Rule(f"random_{seed}", *_steps(Random(seed)))


def wider_rule(chance: Chance, name: str) -> Rule:
    """The same grammar and, seldom, a second group of steps that act together, or a normalised read: what is written
    must then be counted alike in all value channels.
    """
    steps = _steps(chance)
    pairs = [i for i in range(len(steps) - 1) if all(isinstance(step, Substep) for step in steps[i : i + 2])]
    # Drawn with and without pairs: rules of fewer steps then take the same decisions after it.
    together = chance.random()
    if pairs and together >= 0.8:
        start = chance.choice(pairs)
        steps[start : start + 2] = [simultaneous(*steps[start : start + 2])]
    rule = Rule(name, *steps)
    if VALUE_GATE.name in rule.operands or chance.random() < 0.9:
        return rule
    bound = chance.choice(NORMALISERS)
    return Rule(name, *(replace(step, normaliser=bound) if isinstance(step, Read) else step for step in steps))


def _steps(chance: Chance) -> list[Any]:
    substeps = [_substep(chance, first=i == 0) for i in range(chance.choice((1, 1, 2, 2, 3, 4)))]
    steps: list[Any] = _grouped(chance, substeps)
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        steps.insert(chance.randint(0, len(steps)), decay(_log_decay(chance)))
    place = len(steps) if chance.random() < 0.6 else chance.randint(0, len(steps))
    steps.insert(place, _read(chance))
    return steps


def _grouped(chance: Chance, substeps: list[Any]) -> list[Any]:
    if len(substeps) < 2 or chance.random() < 0.6:
        return list(substeps)
    start = chance.randint(0, len(substeps) - 2)
    end = chance.randint(start + 2, len(substeps))
    return [*substeps[:start], simultaneous(*substeps[start:end]), *substeps[end:]]


def _substep(chance: Chance, *, first: bool) -> Any:
    reads = "previous" if chance.random() < 0.2 else None
    kind = chance.choice(("delta", "delta", "write") if first else ("delta", "write", "erase", "erase"))
    if kind == "erase":
        return erase(_address(chance), strength=_strength(chance), reads=reads)
    if kind == "write":
        return write(_address(chance), _target(chance), strength=_strength(chance))
    return delta_write(
        _address(chance), _target(chance), strength=_strength(chance), residual=_residual(chance), reads=reads
    )


def _residual(chance: Chance) -> Any:
    draw = chance.random()
    if draw < 0.5:
        return None
    if draw < 0.75:
        return query_feedback(chance.choice(QUERIES), chance.choice((*GATES, 0.5, -0.25)))
    return _address(chance)


def _address(chance: Chance) -> Any:
    base = _term(chance, chance.choice((*KEYS, *KEYS, *QUERIES)), KEY_GATES)
    if chance.random() < 0.75:
        return base
    other = _term(chance, 0.5 * chance.choice((*KEYS, *QUERIES)), KEY_GATES)
    return base + other if chance.random() < 0.5 else base - other


def _target(chance: Chance) -> Any:
    base = _term(chance, chance.choice(VALUES), (VALUE_GATE,))
    return base if chance.random() < 0.8 else base - 0.5 * chance.choice(VALUES)


def _term(chance: Chance, vector: Any, channel_gates: tuple[Operand, ...]) -> Any:
    draw = chance.random()
    if draw < 0.6:
        return vector
    if draw < 0.75:
        return chance.choice(channel_gates) * vector
    return chance.choice(GATES) * vector if draw < 0.9 else chance.choice(NUMBERS) * vector


def _strength(chance: Chance) -> Any:
    draw = chance.random()
    if draw < 0.6:
        return chance.choice(GATES)
    if draw < 0.8:
        return chance.choice(NUMBERS)
    return chance.choice(GATES) * chance.choice(GATES) if draw < 0.9 else 0.5 * chance.choice(GATES)


def _log_decay(chance: Chance) -> Any:
    return chance.choice((*DECAYS, *DECAYS, -0.1, 0.0))


def _read(chance: Chance) -> Any:
    extra = None
    if chance.random() < 0.2:
        extra = bonus(_address(chance), _address(chance), _target(chance))
    return read(_address(chance), scale=chance.choice((None, None, 1.0, 0.5)), bonus=extra)
