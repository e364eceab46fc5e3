"""How trials end: the result of one that has no worker is written here, and Optuna is told what every result says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from archsearch.studies.files.directory import Result, StudyDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.search.proposals import Proposals
from archsearch.studies.search.rungs import Rungs
from archsearch.studies.search.telling import ending
from archsearch.studies.tasks.direction import Direction

BUGS_BEFORE_END = 3


class BugError(Exception):
    """The study ended because its trials keep failing in the same place of our own code; `traceback` shows where."""

    def __init__(self, traceback: str) -> None:
        """`traceback` is the last trial's."""
        super().__init__(f"{BUGS_BEFORE_END} trials in a row failed in the same place")
        self.traceback = traceback


@dataclass(slots=True)
class Endings:
    """Ends trials. objectives: as in the plan. announce: told in words how each ended."""

    directory: StudyDirectory
    proposals: Proposals
    rungs: Rungs
    objectives: Mapping[str, Direction]
    announce: Callable[[str], None]
    _bugs: list[list[str]] = field(default_factory=list[list[str]])

    def end(self, number: int, outcome: Outcome, message: str) -> None:
        """Write the result of a trial that has no worker, behind a new fence, and tell it."""
        trial = self.directory.trial(number)
        attempt = trial.attempt() + 1
        trial.raise_fence(attempt)
        curve = trial.curve()
        last = curve[-1] if curve else None
        result = Result(
            outcome=outcome,
            attempt=attempt,
            tokens=last.tokens if last else 0,
            values=last.values if last else {},
            seconds=last.seconds if last else 0.0,
            message=message,
        )
        trial.write_result(result)
        self.tell(number, result)

    def tell(self, number: int, result: Result) -> None:
        """Tell Optuna what a result file says. BugError if our own code keeps failing in one place."""
        trial = self.directory.trial(number)
        proposal, curve = trial.proposal() or {}, trial.curve()
        told = ending(result, proposal, curve, self.rungs, self.objectives, number)
        if told.values is not None:
            self.proposals.keep_files(number, proposal, curve)
        self.proposals.tell(number, told)
        shown = ", ".join(f"{name} {result.values[name]:.4g}" for name in self.objectives if name in result.values)
        told_of = shown if result.outcome in (Outcome.COMPLETE, Outcome.STOPPED) else result.message
        self.announce(f"trial {number} {result.outcome.value}: {told_of}")
        self._count_bugs(result, trial.path)

    def _count_bugs(self, result: Result, path: Path) -> None:
        if result.outcome is Outcome.DUPLICATE:
            return
        place = list((result.details or {}).get("place", []))
        self._bugs = [*self._bugs, place] if result.outcome is Outcome.BUG else []
        if self._bugs[-BUGS_BEFORE_END:] == [place] * BUGS_BEFORE_END:
            raise BugError((path / f"log-{result.attempt}.txt").read_text(encoding="utf-8"))
