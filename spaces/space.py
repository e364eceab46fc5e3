"""A space: a rule, its layer, its model and their training, with holes; and the points that filling them gives."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from archsearch import holes
from archsearch.dsl import Rule
from archsearch.holes import Choose, Chosen, Hole, OneOf
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.models.options import Model
from archsearch.spaces.canonical import canonical_text, code
from archsearch.spaces.options import Budget, Schedule, Training
from archsearch.spaces.sense import check_space

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Point:
    """One point: every hole filled. choices: what filled them, path -> label or number, in the order of the walk.

    missed: quantities of the budget that no sizes of this point meet, with the distance as a share of the target; only
    known in a space whose sizes are solved (`archsearch.spaces.budgets.sized`).
    """

    choices: Mapping[str, Chosen] = field(hash=False)
    rule: Rule
    layer: Layer
    model: Model
    training: Training
    budget: Budget
    missed: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)

    @property
    def variant_hash(self) -> str:
        """SHA-256 of rule, layer, model and training: equal for two spellings of one variant, as a head's size that is
        written and the same one left to the width, or two ratios of one MLP.
        """
        parts = (*_spelled_out(self.layer, self.model), self.training)
        text = "\n".join(
            [canonical_text(self.rule), *map(canonical_text, parts), *_operand_order(self.rule, self.layer)]
        )
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Space:
    """What is searched. A hole may stand wherever a value stands, but not in the budget or in what fixes its steps.

    The holes are filled outermost first, rule before layer, model and training. A hole exists only where it has a
    meaning: a source in `layer.operands` where the rule filled so far uses its operand, the sizes of attention, mamba
    and the like where the pattern has such a layer, the output gate's options where there is one, `training.decay` with
    a schedule that has it. Paths: `rule/erase`, `layer/operands/e/rank`, `training/learning_rate`. rule: one rule with
    holes, or `one_of(first=..., second=...)` of whole rules. fit: what solves the sizes of a point for the budget, once
    the task is known; no part of what the space is.

    Errors: SpaceError for holes where none may stand or that no choice needs, and for sources of operands that the rule
    never uses.
    """

    rule: Rule
    model: Model
    layer: Layer = field(default_factory=Layer)
    training: Training = field(default_factory=Training)
    budget: Budget = field(default_factory=Budget)
    fit: "Callable[[Point], Point] | None" = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a space that has no meaning."""
        whole = cast(object, self.rule)
        if isinstance(whole, OneOf) and whole.name is None:
            object.__setattr__(self, "rule", dataclasses.replace(whole, name="rule"))
        check_space(self.rule, self.layer, self.model, self.training, self.budget)

    @property
    def holes(self) -> dict[str, Hole]:
        """Every hole by path, in the order of the walk; not all of them exist in every point."""
        return {path: hole for name, part in self._parts() for path, hole in _prefixed(name, holes.holes(part)).items()}

    @property
    def hash(self) -> str:
        """SHA-256 of the text: another space is another study."""
        return hashlib.sha256(str(self).encode()).hexdigest()

    def resolve(self, choose: Choose) -> Point:
        """The point that a chooser gives. Errors: HoleError for a choice that a hole does not take."""
        choices: dict[str, Chosen] = {}

        def note(path: str, hole: Hole) -> Chosen:
            if path not in choices:
                choices[path] = choose(path, hole)
            return choices[path]

        rule = self.resolve_rule(note)
        layer, model, training = self.needed(rule, note)
        point = Point(
            choices=choices,
            rule=rule,
            layer=_fill("layer", layer, note),
            model=_fill("model", model, note),
            training=_fill("training", training, note),
            budget=self.budget,
        )
        return point if self.fit is None else self.fit(point)

    def resolve_rule(self, choose: Choose) -> Rule:
        """The rule alone, by the paths of the space."""
        return _fill("rule", self.rule, choose)

    def needed(self, rule: Rule, choose: Choose) -> tuple[Layer, Model, Training]:
        """Layer, model and training with the holes that exist beside `rule`, given what `choose` says of the fields
        that others depend on.
        """
        layer, model, training = self.layer.only(rule.operands), self.model, self.training
        gated = _fill("layer", Layer(output_gate=layer.output_gate), choose).output_gate != "none"
        shape = _fill("model", Model(layers=model.layers, pattern=model.pattern), choose)
        cosine = _fill("training", Training(schedule=training.schedule), choose).schedule is Schedule.COSINE
        return (
            layer if gated else layer.without_gate(),
            model.only(shape.entries),
            training.without_decay() if cosine else training,
        )

    def __str__(self) -> str:
        """The space as code."""
        parts = [f"rule={self.rule}", *(f"{name}={code(part)}" for name, part in self._parts()[1:])]
        body = ",\n".join([*parts, f"budget={code(self.budget)}"])
        return "Space(\n" + "\n".join("    " + line for line in body.splitlines()) + ",\n)"

    def _parts(self) -> tuple[tuple[str, Any], ...]:
        return (("rule", self.rule), ("layer", self.layer), ("model", self.model), ("training", self.training))


def _fill(name: str, part: T, choose: Choose) -> T:
    return cast(T, holes.resolve(part, lambda path, hole: choose(f"{name}/{path}", hole)))


def _prefixed(name: str, found: Mapping[str, Hole]) -> dict[str, Hole]:
    return {f"{name}/{path}": hole for path, hole in found.items()}


def _spelled_out(layer: Layer, model: Model) -> tuple[Layer, Model]:
    """Both with the sizes that they leave to each other written down."""
    head, values = layer.head_dim or model.width // model.heads, layer.value_heads or model.heads
    spelled = dataclasses.replace(model, pattern=model.entries, mlp_ratio=model.mlp_width / model.width)
    return dataclasses.replace(layer, head_dim=head, value_heads=values), spelled


def _operand_order(rule: Rule, layer: Layer) -> list[str]:
    """Which operand, counted by first use, has which source of its own: the names themselves do not count."""
    given = layer.operands
    return [f"{index}: {canonical_text(given[name])}" for index, name in enumerate(rule.operands) if name in given]
