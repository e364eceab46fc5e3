"""What a probe finds, as plain data a head: figures, curves, events, or the reason why there is nothing to find."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

Figures = Mapping[str, tuple[float | None, ...]]


class Name(Enum):
    """The quantities, in the order in which they are told."""

    CONTRACTION = "contraction"
    DRIFT = "drift"
    READOUT = "readout_cosine"
    ENERGY = "readout_energy"
    GATES = "gate_shares"
    COLLATERAL = "collateral"
    GEOMETRY = "address_geometry"
    UPDATES = "updates"
    READABILITY = "readability"
    ERASURE = "erasure"
    REMAINING = "own_write"
    TRANSITION = "transition"
    HEALTH = "state_health"
    MEMORY = "memory_length"


@dataclass(frozen=True, slots=True)
class Curve:
    """One line a head over the same places; None where nothing was measured."""

    x: tuple[float, ...]
    heads: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity of one layer. of: the row or pair of addresses that it is about, empty where it is the state's.

    figures: a number a head, None where it is not defined. events: one object each, where single tokens are told of.
    """

    name: Name
    of: str
    figures: Figures
    curves: Mapping[str, Curve] = field(default_factory=dict[str, Curve])
    events: tuple[Mapping[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        curves = {name: {"x": list(c.x), "heads": [list(line) for line in c.heads]} for name, c in self.curves.items()}
        figures = {name: list(values) for name, values in self.figures.items()}
        found = {"name": self.name.value, "of": self.of, "figures": figures, "curves": curves}
        return {**found, "events": [dict(event) for event in self.events]} if self.events else found


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A quantity that the rule has no part for, and why."""

    name: Name
    reason: str


Found = Quantity | LeftOut


def by_head(values: Tensor, reduce: Callable[[Tensor], Tensor]) -> tuple[float | None, ...]:
    """`reduce` over all values [..., HV] of each head that are numbers; None where there are none."""
    columns = values.detach().double().reshape(-1, values.shape[-1]).T
    return tuple(_reduced(column[~column.isnan()], reduce) for column in columns)


def mean(values: Tensor) -> tuple[float | None, ...]:
    """The mean a head."""
    return by_head(values, torch.mean)


def median(values: Tensor) -> tuple[float | None, ...]:
    """The median a head."""
    return quantile(values, 0.5)


def quantile(values: Tensor, share: float) -> tuple[float | None, ...]:
    """The value below which `share` of them lie, a head."""

    def of(found: Tensor) -> Tensor:
        with np.errstate(invalid="ignore"):  # between two infinities
            return torch.from_numpy(np.asarray(np.quantile(found.numpy(), share)))

    return by_head(values, of)


def most(values: Tensor) -> tuple[float | None, ...]:
    """The largest a head."""
    return by_head(values, torch.amax)


def least(values: Tensor) -> tuple[float | None, ...]:
    """The smallest a head."""
    return by_head(values, torch.amin)


def density(values: Tensor, bins: int = 64) -> Curve:
    """A histogram a head of values [..., HV] over their common range; its area is 1. x are the middles of the bins."""
    columns = values.detach().double().reshape(-1, values.shape[-1]).T.numpy()
    seen = columns[np.isfinite(columns)]
    if not seen.size:
        return Curve((), tuple(() for _ in columns))
    low, high = float(seen.min()), float(seen.max())
    least = max(abs(low), abs(high), 1e-9) * 1e-3  # of one value, and of many that differ by rounding
    room = max(0.0, least - (high - low))
    edges = np.linspace(low - room, high + room, bins + 1)
    heads = [np.histogram(column[np.isfinite(column)], bins=edges, density=False)[0] for column in columns]
    width = float(edges[1] - edges[0])
    lines = tuple(tuple(float(n) / max(1, int(count.sum())) / width for n in count) for count in heads)
    return Curve(tuple(float(x) for x in (edges[:-1] + edges[1:]) / 2), lines)


def curve(x: Sequence[float], values: Tensor) -> Curve:
    """Lines from values [HV, len(x)]; what is not finite is None."""
    rows = [[float(each) for each in row] for row in values.detach().double().numpy()]
    return Curve(tuple(map(float, x)), tuple(tuple(y if math.isfinite(y) else None for y in row) for row in rows))


def mean_over(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The mean over dimensions of what is a number; NaN where nothing is."""
    return values.detach().double().nanmean(dims)


def places(tokens: int, count: int) -> tuple[int, ...]:
    """`count` tokens or fewer, evenly spaced from the first to the last."""
    return tuple(sorted({round(place) for place in np.linspace(0, tokens - 1, min(count, tokens)).tolist()}))


def _reduced(column: Tensor, reduce: Callable[[Tensor], Tensor]) -> float | None:
    if not column.numel():
        return None
    found = float(reduce(column))
    return found if math.isfinite(found) else None
