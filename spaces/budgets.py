"""A point's sizes solved for the budget of its space, and what could not be solved."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from archsearch.dsl import Rule
from archsearch.errors import ArchsearchError, SpaceError
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.layer.papers import paper_layer
from archsearch.mixers.lookup import find_rule
from archsearch.mixers.models.options import Model
from archsearch.spaces.options import QUANTITIES
from archsearch.spaces.resolution import baseline, middle
from archsearch.spaces.resolution import find_rule as choices_of
from archsearch.spaces.sizes import Setting, Sizes
from archsearch.spaces.solving import solved
from archsearch.spaces.space import Point, Space


@dataclass(frozen=True, slots=True)
class Targets:
    """What the points of a space are to cost: numbers by quantity, none where the budget names none. known: sizes that
    were solved before.
    """

    numbers: Mapping[str, float]
    tolerance: float
    setting: Setting
    known: dict[tuple[Rule, Layer, Model], Sizes] = field(
        default_factory=dict[tuple[Rule, Layer, Model], Sizes], compare=False, repr=False
    )

    def fitted(self, point: Point) -> Point:
        """`point` in the sizes that cost so much, or come nearest; one that makes no model stays as it is."""
        written = (point.rule, point.layer, point.model)
        if written not in self.known:
            self.known[written] = solved(self._sizes(point))
        found = self.known[written]
        if any(found.cost(name) is None for name in self.numbers):
            return point
        missed = {name: error for name in self.numbers if (error := found.error(name)) > self.tolerance}
        return replace(point, layer=found.layer, model=found.model, missed=missed)

    def words(self, point: Point) -> list[str]:
        """One line for each quantity that a fitted point misses."""
        costs = {name: self._sizes(point).cost(name) or 0.0 for name in point.missed}
        return [
            f"budget.{name} asks for {self.numbers[name]:,.0f}; the nearest sizes give {cost:,.0f} "
            f"({cost / self.numbers[name] - 1:+.1%})"
            for name, cost in costs.items()
        ]

    def _sizes(self, point: Point) -> Sizes:
        return Sizes(point.rule, point.layer, point.model, self.setting, self.numbers, self.tolerance)


def targets(space: Space, setting: Setting) -> Targets:
    """The budget of a space in numbers: those of rules that it names are counted. SpaceError for a name that is none.

    A named rule is counted in the sizes that the space writes, the plainest where it writes holes.
    """
    asked = {name: getattr(space.budget, name) for name in QUANTITIES}
    numbers = {
        name: _of_reference(space, name, value, setting) if isinstance(value, str) else float(value)
        for name, value in asked.items()
        if value is not None
    }
    return Targets(numbers, space.budget.tolerance, setting)


def sized(space: Space, setting: Setting) -> Space:
    """`space` with the sizes of every point solved for its budget. SpaceError as `targets`."""
    found = targets(space, setting)
    return replace(space, fit=found.fitted) if found.numbers else space


def _of_reference(space: Space, quantity: str, name: str, setting: Setting) -> float:
    try:
        rule = find_rule(name)
    except ArchsearchError as error:
        raise SpaceError(f"budget.{quantity} must be a number or the name of a rule: {error}") from error
    point = _reference(space, name, rule)
    cost = Sizes(rule, point.layer, point.model, setting, {}, 0.0).cost(quantity)
    if cost is None:
        raise SpaceError(f"budget.{quantity} is that of {name}, of which no model can be built in the space's sizes")
    return cost


def _reference(space: Space, name: str, rule: Rule) -> Point:
    """The rule's point; of a rule that is none, the plainest point with the rule and its paper's layer in it."""
    if choices_of(space, rule) is not None:
        choices = baseline(space, name, rule)
        return space.resolve(lambda path, hole: choices[path])
    plainest = space.resolve(lambda path, hole: middle(hole))
    return replace(plainest, rule=rule, layer=paper_layer(rule) or Layer())
