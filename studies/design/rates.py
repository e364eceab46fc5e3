"""A grid of learning rates: every structure is trained at each of them, so that none is judged at another's rate."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from archsearch.errors import ConfigError
from archsearch.holes import OneOf, one_of
from archsearch.spaces.space import Space

RATE = "training/learning_rate"
"""The path of the rate among a trial's choices."""


def check_rates(rates: Sequence[float]) -> None:
    """Refuse a grid that is none. ConfigError."""
    if any(rate <= 0 for rate in rates):
        raise ConfigError(f"learning_rates must be > 0; got {min(rates):g}")
    twice = [rate for rate in rates if list(rates).count(rate) > 1]
    if twice:
        raise ConfigError(f"learning_rates must differ; got {twice[0]:g} twice")


def with_rates(space: Space, rates: Sequence[float]) -> Space:
    """The space whose learning rate is a choice among `rates`; the space itself where there are none."""
    if not rates:
        return space
    return dataclasses.replace(space, training=dataclasses.replace(space.training, learning_rate=one_of(*rates)))


def at_other_rates(choices: Mapping[str, Any], rates: Sequence[float]) -> list[dict[str, Any]]:
    """The same structure at every other rate of the grid: the trials that go with one that was proposed."""
    hole = one_of(*rates) if rates else None
    labels = hole.labels if isinstance(hole, OneOf) else ()
    return [{**choices, RATE: label} for label in labels if label != choices.get(RATE)]


def without_rate(choices: Mapping[str, Any]) -> dict[str, Any]:
    """The choices that make a structure."""
    return {path: value for path, value in choices.items() if path != RATE}
