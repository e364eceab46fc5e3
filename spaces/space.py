"""A space: a rule, its layer, its model and their training, with holes; and the points that filling them gives."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from archsearch import holes
from archsearch.dsl import Rule
from archsearch.errors import SpaceError
from archsearch.holes import Choose, Chosen, Hole
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.models.options import Model
from archsearch.spaces.canonical import canonical_text, code
from archsearch.spaces.options import Budget, Training


@dataclass(frozen=True, slots=True)
class Point:
    """One point: every hole filled. choices: what filled them, path -> label or number, in the order of the walk."""

    choices: Mapping[str, Chosen] = field(hash=False)
    rule: Rule
    layer: Layer
    model: Model
    training: Training
    budget: Budget

    @property
    def variant_hash(self) -> str:
        """SHA-256 of rule, layer, model and training: equal for two spellings of one variant."""
        parts = (self.layer, self.model, self.training)
        text = "\n".join(
            [canonical_text(self.rule), *map(canonical_text, parts), *_operand_order(self.rule, self.layer)]
        )
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Space:
    """What is searched. A hole may stand wherever a value stands, but not in the budget or in what fixes its steps.

    The holes are filled outermost first, rule before layer, model and training; a source in `layer.operands` counts
    only where the rule filled so far uses its operand. Paths: `rule/erase`, `layer/operands/e/rank`,
    `training/learning_rate`.

    Errors: SpaceError for holes where none may stand and for sources of operands that the rule never uses.
    """

    rule: Rule
    model: Model
    layer: Layer = field(default_factory=Layer)
    training: Training = field(default_factory=Training)
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        """Refuse a space that has no meaning."""
        fixed = [f"budget/{path}" for path in holes.holes(self.budget)]
        fixed += [p for p in _prefixed("training", holes.holes(self.training)) if p.startswith("training/batch_tokens")]
        if fixed:
            raise SpaceError(f"no hole may stand where the budget is fixed; got {fixed[0]}: give it one value")
        unused = [name for name in self.layer.operands if name not in self.rule.operands]
        if unused:
            raise SpaceError(
                f"layer.operands names operands of the rule ({', '.join(self.rule.operands)}); got {unused[0]!r}, "
                "which no choice of its holes uses: rename or remove it"
            )

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
            choices[path] = choose(path, hole)
            return choices[path]

        rule = self.resolve_rule(note)
        used = rule.operands
        return Point(
            choices=choices,
            rule=rule,
            layer=_fill("layer", self.layer.only(used), note),
            model=_fill("model", self.model, note),
            training=_fill("training", self.training, note),
            budget=self.budget,
        )

    def resolve_rule(self, choose: Choose) -> Rule:
        """The rule alone, by the paths of the space."""
        return cast(Rule, _fill("rule", self.rule, choose))

    def __str__(self) -> str:
        """The space as code."""
        parts = [f"rule={self.rule}", *(f"{name}={code(part)}" for name, part in self._parts()[1:])]
        body = ",\n".join([*parts, f"budget={code(self.budget)}"])
        return "Space(\n" + "\n".join("    " + line for line in body.splitlines()) + ",\n)"

    def _parts(self) -> tuple[tuple[str, Any], ...]:
        return (("rule", self.rule), ("layer", self.layer), ("model", self.model), ("training", self.training))


def _fill(name: str, part: Any, choose: Choose) -> Any:
    return holes.resolve(part, lambda path, hole: choose(f"{name}/{path}", hole))


def _prefixed(name: str, found: Mapping[str, Hole]) -> dict[str, Hole]:
    return {f"{name}/{path}": hole for path, hole in found.items()}


def _operand_order(rule: Rule, layer: Layer) -> list[str]:
    """Which operand, counted by first use, has which source of its own: the names themselves do not count."""
    return [
        f"{index}: {code(layer.operands[name])}" for index, name in enumerate(rule.operands) if name in layer.operands
    ]
