"""The log of the rungs: what was decided about each trial that came to one, a line a decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from archsearch.studies.files import records


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about one trial at one rung.

    tokens: the rung, as tokens of the whole trial. values: the objectives there. rank: 0-based place among the `peers`
    that had come, this trial among them. better: the share of the others that were better. reason: in words.
    """

    trial: int
    rung: int
    tokens: int
    values: Mapping[str, float]
    rank: int
    peers: int
    better: float
    stop: bool
    reason: str

    def record(self) -> dict[str, object]:
        """The line of the log."""
        plain: dict[str, object] = {name: getattr(self, name) for name in self.__slots__}
        return {**plain, "values": dict(self.values)}


KINDS: records.Kinds = {
    **dict.fromkeys(("trial", "rung", "tokens", "rank", "peers"), int),
    "values": records.VALUES,
    "better": records.NUMBER,
    "stop": bool,
    "reason": str,
}


def read_decisions(log: Path) -> Sequence[Decision]:
    """The decisions of a rung log, oldest first."""
    found: list[Decision] = []
    for number, line in enumerate(records.read_lines(log), start=1):
        with records.read_as_written(log, f"line {number}"):
            records.check_kinds(line, KINDS)
            found.append(Decision(**cast(dict[str, Any], line)))
    return found
