"""A rule in a model with its sizes, and what they cost: exact counts, asked for while sizes are solved."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from archsearch.dsl import Rule
from archsearch.errors import ArchsearchError
from archsearch.mixers.layer.checks import LARGEST_RATIO, LARGEST_SIZE
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.models import counts
from archsearch.mixers.models.options import Model


@dataclass(frozen=True, slots=True)
class Setting:
    """What counts depend on beside the model: the task's vocabulary and the length of its sequences."""

    vocabulary: int
    length: int


Costs = dict[tuple[float | str | None, ...], float | None]
"""What sizes cost, as far as it was asked for."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A rule in a model, with what it costs. Sizes that make no model have no cost.

    targets: what the quantities are to be. known: costs that were asked for before, of all sizes made from the same.
    """

    rule: Rule
    layer: Layer
    model: Model
    setting: Setting
    targets: Mapping[str, float]
    tolerance: float
    known: Costs = field(default_factory=dict[tuple[float | str | None, ...], float | None], compare=False, repr=False)

    def cost(self, quantity: str) -> float | None:
        """One of the quantities; None where the sizes make no model."""
        key = (self.model.width, self.model.mlp_ratio, self.layer.head_dim, self.layer.expand_v, quantity)
        if key not in self.known:
            self.known[key] = self._cost(quantity)
        return self.known[key]

    def _cost(self, quantity: str) -> float | None:
        parts = (self.rule, self.model, self.layer)
        try:
            match quantity:
                case "parameters":
                    return counts.parameters(*parts, self.setting.vocabulary)
                case "flops_per_token":
                    return counts.flops_per_token(*parts, self.setting.vocabulary, self.setting.length)
                case _:
                    return counts.state_bytes(*parts, self.setting.length)
        except ArchsearchError:
            return None

    def error(self, quantity: str) -> float:
        """The relative distance from the target; infinite where the sizes make no model."""
        cost = self.cost(quantity)
        return math.inf if cost is None else abs(cost / self.targets[quantity] - 1.0)

    @property
    def worst(self) -> float:
        """The largest relative distance from a target."""
        return max((self.error(quantity) for quantity in self.targets), default=0.0)

    @property
    def fits(self) -> bool:
        """Whether every target is met."""
        return self.worst <= self.tolerance

    @property
    def head(self) -> tuple[int, int]:
        """K and V of a head."""
        key = self.layer.head_dim or self.model.width // self.model.heads
        return key, round(key * self.layer.expand_v)

    def with_head(self, key: int, value: int) -> "Sizes":
        """The same with other K and V."""
        key = min(key, LARGEST_SIZE)
        return replace(self, layer=replace(self.layer, head_dim=key, expand_v=min(value / key, LARGEST_RATIO)))

    def with_value(self, value: int) -> "Sizes":
        """The same with another V; K stays what it is."""
        return replace(self, layer=replace(self.layer, expand_v=min(value / self.head[0], LARGEST_RATIO)))

    def with_width(self, width: int) -> "Sizes":
        """The same in another width."""
        return replace(self, model=replace(self.model, width=min(width, LARGEST_SIZE)))

    def with_hidden(self, hidden: int) -> "Sizes":
        """The same with an MLP of so many channels, a multiple of 16."""
        return replace(self, model=replace(self.model, mlp_ratio=min(hidden / self.model.width, LARGEST_RATIO)))
