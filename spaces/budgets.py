"""A point's sizes solved for the budget of its space, and what could not be solved."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from archsearch.dsl import Rule
from archsearch.errors import ArchsearchError, SpaceError
from archsearch.mixers.layer.papers import paper_layer
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.lookup import find_rule
from archsearch.spaces.options import QUANTITIES
from archsearch.spaces.resolution import baseline, middle
from archsearch.spaces.resolution import find_rule as choices_of
from archsearch.spaces.sizes import Setting, Sizes, solved
from archsearch.spaces.space import Point, Space


@dataclass(frozen=True, slots=True)
class Fitted:
    """A point with its sizes solved. costs: each quantity of the budget. missed: how far one is from its target, as a
    share of it, where no sizes come within the tolerance.
    """

    point: Point
    costs: Mapping[str, float]
    missed: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Budgeted:
    """What the points of a space are to cost. targets: by quantity, none where the budget names none."""

    targets: Mapping[str, float]
    tolerance: float
    setting: Setting

    def fit(self, point: Point) -> Fitted:
        """`point` in the sizes that cost what the budget says. A point that makes no model stays as it is."""
        start = Sizes(point.rule, point.layer, point.model, self.setting, self.targets, self.tolerance)
        if not self.targets:
            return Fitted(point, {}, {})
        found = solved(start)
        costs = {name: cost for name in self.targets if (cost := found.cost(name)) is not None}
        if len(costs) < len(self.targets):
            return Fitted(point, {}, {})
        missed = {name: error for name in self.targets if (error := found.error(name)) > self.tolerance}
        return Fitted(replace(point, layer=found.layer, model=found.model), costs, missed)

    def words(self, fitted: Fitted) -> list[str]:
        """One line for each quantity that was missed."""
        return [
            f"budget.{name} asks for {self.targets[name]:,.0f}; the nearest sizes give {fitted.costs[name]:,.0f}, "
            f"{fitted.costs[name] / self.targets[name] - 1:+.1%}"
            for name in fitted.missed
        ]


def budgeted(space: Space, setting: Setting) -> Budgeted:
    """The budget of a space in numbers: those of rules that it names are counted. SpaceError for a name that is none."""
    asked = {name: getattr(space.budget, name) for name in QUANTITIES}
    targets = {
        name: _of_reference(space, name, value, setting) if isinstance(value, str) else float(value)
        for name, value in asked.items()
        if value is not None
    }
    return Budgeted(targets, space.budget.tolerance, setting)


def _of_reference(space: Space, quantity: str, name: str, setting: Setting) -> float:
    """What the model of a named rule costs in the sizes that the space writes, the plainest where it writes holes."""
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
