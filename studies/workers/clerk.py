"""The worker's side of a trial's directory: behind the fence, one evaluation after another, the result last.

A worker never speaks with the driver: it writes its measurements, waits at a rung for a file, and ends with
result.json.
"""

import contextlib
import math
import statistics
import time
import traceback
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from archsearch.errors import described
from archsearch.studies.files.board import Board
from archsearch.studies.files.directory import Measurement, Result, StudyDirectory, TrialDirectory
from archsearch.studies.files.outcomes import Outcome, Unstable, classify, full_disk

POLL_SECONDS = 0.02
ROUNDING = 1e-8
"""Fractions of a budget nearer than this are one."""


class Superseded(Exception):
    """Another attempt owns the trial now; this one leaves without a word."""


class Halted(Superseded):
    """The study was asked to stop; the trial leaves after its checkpoint, and a later driver goes on from there."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at one trial: all that a worker is told; the rest stands in the study's directory.

    alone: the trial has a whole GPU, where trials of the study share them.
    """

    study: Path
    number: int
    attempt: int
    alone: bool = False


class Body(Protocol):
    """Trains the trial that `clerk` keeps the files of, from its newest checkpoint to the end of its budget or a stop.

    After each evaluation: `clerk.record`, then the checkpoint, then `clerk.goes_on`, and return if that is False; once
    before the first step too, with the tokens of the checkpoint that it starts from. Returns facts for the record
    (plain data: parameters, state_bytes, ...).
    """

    def __call__(self, clerk: "Clerk") -> Mapping[str, Any]:
        """Run the trial."""
        ...


class Clerk:
    """Keeps one trial's files during one attempt."""

    def __init__(self, assignment: Assignment) -> None:
        """Read the plan and the proposal. Superseded if the attempt is not, or no longer, the one that may write."""
        study = StudyDirectory(assignment.study)
        self._study = study
        self.number = assignment.number
        self.attempt = assignment.attempt
        self.alone = assignment.alone
        self.trial: TrialDirectory = study.trial(assignment.number)
        self.check_fence()
        self.plan: Mapping[str, Any] = study.plan()
        self.proposal: Mapping[str, Any] = self.trial.proposal() or {}
        self._objectives: list[str] = list(self.plan["objectives"])
        self._rungs: list[int] = [int(tokens) for tokens in self.plan["rung_tokens"]]
        self._total = self._rungs[-1]
        self._curve = self.trial.curve()
        self.trial.write_presence(self.attempt)
        wanted = bool(cast(Mapping[str, Any], self.plan.get("config", {})).get("tensorboard"))
        self._board = Board(self.trial.path, self.last.tokens if self.last else 0) if wanted else None

    @property
    def last(self) -> Measurement | None:
        """The newest measurement of any attempt."""
        return self._curve[-1] if self._curve else None

    def tokens(self, fraction: float) -> int:
        """The tokens of the whole trial at a fraction of its budget; at a rung, exactly the rung's."""
        near = [tokens for tokens in self._rungs if abs(tokens / self._total - fraction) < ROUNDING]
        return near[0] if near else max(1, round(fraction * self._total))

    @property
    def rung_fractions(self) -> list[float]:
        """The fractions of the budget at which there must be an evaluation, the last one 1."""
        return [tokens / self._total for tokens in self._rungs]

    def check_fence(self) -> None:
        """Superseded if a newer attempt was begun."""
        if self.trial.attempt() != self.attempt:
            raise Superseded

    def _check_halt(self) -> None:
        if self._study.stop_asked():
            raise Halted

    def record(self, fraction: float, values: Mapping[str, float], seconds: float) -> None:
        """Write an evaluation at `fraction` of the budget, after `seconds` of training.

        Errors: Unstable if an objective is not finite; other values that are not finite are left out.
        """
        lost = [name for name in self._objectives if name in values and not math.isfinite(values[name])]
        if lost:
            raise Unstable(f"{lost[0]} is {values[lost[0]]} at {self.tokens(fraction)} tokens")
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self.check_fence()
        measurement = Measurement(self.attempt, self.tokens(fraction), fraction, finite, seconds)
        self.trial.append_measurement(measurement)
        self._curve = [m for m in self._curve if m.tokens < measurement.tokens] + [measurement]
        if self._board is not None:
            self._board.add(measurement.tokens, finite, seconds)

    def goes_on(self, fraction: float) -> bool:
        """Wait until every rung passed at `fraction` is decided; whether the trial goes on.

        Without waiting at the end. Halted if the study was asked to stop; DamagedError where the evaluation at
        `fraction` was lost, which no rung could be decided without.
        """
        self._check_halt()
        reached = self.tokens(fraction) if fraction else 0
        if reached > (self.last.tokens if self.last else 0):
            raise self.trial.unmeasured(reached)
        return not any(self._stops(tokens) for tokens in self._rungs[:-1] if tokens <= reached)

    def _stops(self, rung: int) -> bool:
        while (stop := self.trial.decision(rung)) is None:
            self.check_fence()
            self._check_halt()
            time.sleep(POLL_SECONDS)
        return stop

    @property
    def _final_values(self) -> Mapping[str, float]:
        """What the newest evaluation measured; of each objective the mean over as many evaluations as the study asks
        for, of those there are.
        """
        averaged = int(cast(Mapping[str, Any], self.plan.get("fixed", {})).get("averaged", 1))
        newest = self._curve[-averaged:]
        means = {
            name: statistics.fmean(found)
            for name in self._objectives
            if len(found := [m.values[name] for m in newest if name in m.values]) > 1
        }
        return {**(newest[-1].values if newest else {}), **means}

    def conclude(self, details: Mapping[str, Any]) -> None:
        """Write the result of a body that returned: complete with the whole budget, stopped where a rung said so."""
        last = self.last
        if last is None or last.fraction < 1:
            if any(self.trial.decision(tokens) for tokens in self._rungs[:-1]):
                self.finish(Outcome.STOPPED, "", details)
            else:
                self._finish_as_bug(str(self.trial.unmeasured(self._total)), ["no evaluation"], details)
            return
        missing = [name for name in self._objectives if name not in last.values]
        if missing:
            self._finish_as_bug(f"the trial measured no {missing[0]}", missing, details)
        else:
            self.finish(Outcome.COMPLETE, "", details, self._final_values)

    def _finish_as_bug(self, message: str, place: list[str], details: Mapping[str, Any]) -> None:
        """End the trial by what our own code should not have let come."""
        self.check_fence()
        self.trial.write_log(self.attempt, f"{message}\n")
        self.finish(Outcome.BUG, message, {**details, "place": place})

    def finish(
        self, outcome: Outcome, message: str, details: Mapping[str, Any], values: Mapping[str, float] | None = None
    ) -> None:
        """Write the result: how it ended, with `values`, by default those of the last good measurement."""
        last = self.last
        if values is None:
            values = last.values if last else {}
        self.check_fence()
        self.trial.write_result(
            Result(
                outcome=outcome,
                attempt=self.attempt,
                tokens=last.tokens if last else 0,
                values=values,
                seconds=last.seconds if last else 0.0,
                message=message,
                details=details,
            )
        )


@contextlib.contextmanager
def naming_full_disks() -> Generator[None]:
    """A block that raises DiskFull instead of what a full disk was made into."""
    try:
        yield
    except Exception as error:
        full = full_disk(error)
        if full is None or full is error:
            raise
        raise full from error


@naming_full_disks()
def work(assignment: Assignment, body: Body) -> bool:
    """Carry out one attempt; whether it ended well, so that its process is fit for another one.

    The trial has its result afterwards, unless the attempt was superseded. A fault of the machine is raised, DiskFull
    among them.
    """
    try:
        clerk = Clerk(assignment)
        try:
            details = body(clerk)
        except Superseded:
            raise
        except Exception as error:
            fail(clerk, error)
            return False
        clerk.conclude(details)
    except Superseded:
        return False
    return True


def fail(clerk: Clerk, error: Exception) -> None:
    """End the trial by `error`, which is raised again where it is the machine's fault."""
    if full_disk(error) is not None:
        raise error  # its log could not be written either
    outcome = classify(error)
    text = "".join(traceback.format_exception(error))
    clerk.check_fence()
    clerk.trial.write_log(clerk.attempt, text)
    if outcome is Outcome.INFRASTRUCTURE:
        raise error
    frames = traceback.extract_tb(error.__traceback__)
    place = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]
    clerk.finish(outcome, described(error), {"place": [type(error).__name__, *place]})
