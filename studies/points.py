"""A point of a space as plain data and back: what trial.json holds and a worker builds from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from archsearch.dsl import Rule, parse_rule
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.models.options import Model
from archsearch.spaces.options import Budget, Training
from archsearch.spaces.space import Point
from archsearch.typed_data import from_plain, to_plain


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point as the driver takes it."""

    point: Point
    space_hash: str

    @property
    def variant_hash(self) -> str:
        """Equal for two spellings of one variant."""
        return self.point.variant_hash

    def record(self) -> dict[str, object]:
        """Its part of trial.json."""
        parts = {name: to_plain(getattr(self.point, name)) for name in ("layer", "model", "training", "budget")}
        return {
            "choices": dict(self.point.choices),
            "rule": str(self.point.rule),
            "rule_hash": self.point.rule.hash,
            "space_hash": self.space_hash,
            **parts,
        }


@dataclass(frozen=True, slots=True)
class Variant:
    """A point read back."""

    rule: Rule
    layer: Layer
    model: Model
    training: Training
    budget: Budget


def read_variant(record: Mapping[str, Any]) -> Variant:
    """The variant of a trial.json. ConfigError or RuleError if it is not what was written."""
    kinds = {"layer": Layer, "model": Model, "training": Training, "budget": Budget}
    parts = {name: from_plain(kind, record[name], f"{name} of trial.json") for name, kind in kinds.items()}
    return Variant(rule=parse_rule(record["rule"]), **cast(Any, parts))
