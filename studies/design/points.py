"""A point of a space as plain data: what trial.json holds and a worker builds from."""

from dataclasses import dataclass

from archsearch.spaces.space import Point
from archsearch.typed_data import to_plain


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
            **({"missed": dict(self.point.missed)} if self.point.missed else {}),
        }
