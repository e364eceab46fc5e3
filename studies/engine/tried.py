"""What a study has proposed so far, counted from its trial.json files: as they are written, or read back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from archsearch.studies.files.origins import PROPOSAL


@dataclass(slots=True)
class Tried:
    """The proposals of a study in numbers.

    proposed: variants that a sampler has proposed, each seed of one counted. duplicates_in_a_row: proposals since the
    last of these that an earlier trial had answered.
    """

    proposed: int = 0
    duplicates_in_a_row: int = 0
    _first: dict[str, int] = field(default_factory=dict[str, int])
    _trials: dict[str, int] = field(default_factory=dict[str, int])
    _origins: dict[int, str] = field(default_factory=dict[int, str])
    _leaders: dict[int, int] = field(default_factory=dict[int, int])

    def remember(self, number: int, proposal: Mapping[str, Any]) -> None:
        """Count a proposal that stands in the files."""
        origin, leader = str(proposal["origin"]), proposal.get("leader")
        self._origins[number] = origin
        self._leaders[number] = number if leader is None else int(leader)
        if proposal.get("duplicate_of") is not None:
            self.duplicates_in_a_row += leader is None
            return
        variant = str(proposal["variant_hash"])
        self._first.setdefault(variant, number)
        self._trials[variant] = self._trials.get(variant, 0) + 1
        if origin == PROPOSAL and leader is None:
            self.duplicates_in_a_row = 0
            self.proposed += 1

    @property
    def variants(self) -> int:
        """How many there are."""
        return len(self._first)

    def first(self, variant: str) -> int | None:
        """The first trial of a variant; None while it has none."""
        return self._first.get(variant)

    def trials(self, variant: str) -> int:
        """How many trials a variant has, its seeds counted."""
        return self._trials.get(variant, 0)

    def origin(self, number: int) -> str:
        """Who asked for a trial."""
        return self._origins[number]

    def leader(self, number: int) -> int:
        """The trial that a trial goes with; itself where it goes with none."""
        return self._leaders[number]

    @property
    def newest_leader(self) -> int | None:
        """The newest trial that goes with none; None before the first."""
        return max(self._leaders.values(), default=None)
