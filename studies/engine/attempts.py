"""The attempts that run and the trials that wait for a slot, as far as the driver has read their files."""

import statistics
import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field

from archsearch.studies.engine.limits import Patience
from archsearch.studies.files.directory import Measurement, StudyDirectory
from archsearch.studies.workers.clerk import Assignment
from archsearch.studies.workers.executor import Departure, Executor

INTERVALS = 200
"""Between evaluations, the newest, of which the median says how long one takes."""
LEAST_INTERVALS = 5
"""Before their median says anything."""


@dataclass(slots=True)
class _Live:
    """A running attempt, as far as the driver has read it."""

    assignment: Assignment
    heard: float
    lines: int = 0
    present: bool = False


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A trial that waits for a slot until `ready` (monotonic seconds); alone: for a whole GPU."""

    number: int
    ready: float
    alone: bool


@dataclass(slots=True)
class Attempts:
    """Begins attempts, notes what their workers write, and ends them."""

    directory: StudyDirectory
    executor: Executor
    patience: Patience
    _live: dict[int, _Live] = field(default_factory=dict[int, _Live])
    _queue: list[_Waiting] = field(default_factory=list[_Waiting])
    _intervals: deque[float] = field(default_factory=lambda: deque[float](maxlen=INTERVALS))

    @property
    def any_run(self) -> bool:
        """Whether one does."""
        return bool(self._live)

    @property
    def any_left(self) -> bool:
        """Whether one runs, or a trial waits for its next one."""
        return bool(self._live or self._queue)

    def queue(self, number: int, *, seconds: float = 0.0, alone: bool = False) -> None:
        """Have a trial wait for a slot, and for so many seconds. alone: for a whole GPU, before all others."""
        waiting = _Waiting(number, time.monotonic() + seconds if seconds else 0.0, alone)
        self._queue.insert(0 if alone else len(self._queue), waiting)

    def may_begin(self) -> bool:
        """Whether a slot is free, and nothing runs alone or waits for the others to end."""
        waits = self.any_run and any(waiting.alone for waiting in self._queue)
        alone = any(live.assignment.alone for live in self._live.values())
        return len(self._live) < self.executor.slots and not waits and not alone

    def has_room(self) -> bool:
        """Whether a slot is free that no waiting trial keeps.

        A lost trial keeps its slot until it is begun again: what is proposed after it is to know how it ended.
        """
        return len(self._live) + len(self._queue) < self.executor.slots

    def begin_waiting(self) -> Assignment | None:
        """Begin the next attempt at the first trial that has waited long enough; None where none has."""
        ready = next((waiting for waiting in self._queue if waiting.ready <= time.monotonic()), None)
        if ready is None:
            return None
        self._queue.remove(ready)
        return self._begin(ready.number, alone=ready.alone)

    def _begin(self, number: int, *, alone: bool) -> Assignment:
        """Start the next attempt at a trial; the fence shuts out whatever is left of the ones before."""
        trial = self.directory.trial(number)
        attempt = trial.attempt() + 1
        trial.raise_fence(attempt)
        assignment = Assignment(self.directory.path, number, attempt, alone)
        self._live[number] = _Live(assignment, heard=time.monotonic(), lines=len(trial.curve()))
        self.executor.start(assignment)
        return assignment

    def curves(self) -> Generator[tuple[int, list[Measurement]]]:
        """The number and the curve of every running trial, read again; its new lines are noted."""
        for number, live in self._live.items():
            trial = self.directory.trial(number)
            if not live.present and trial.is_present(live.assignment.attempt):
                live.present, live.heard = True, time.monotonic()  # it may have waited for a node until now
            curve = trial.curve()
            if len(curve) > live.lines:
                now = time.monotonic()
                self._intervals.append((now - live.heard) / (len(curve) - live.lines))
                live.heard, live.lines = now, len(curve)
            yield number, curve

    def departed(self, departure: Departure) -> bool:
        """Note that an attempt is over; whether it was one that ran."""
        live = self._live.get(departure.assignment.number)
        if live is None or live.assignment != departure.assignment:
            return False
        del self._live[departure.assignment.number]
        return True

    def longest_silence(self) -> float:
        """Seconds without a new line after which a trial hangs."""
        known = len(self._intervals) >= LEAST_INTERVALS
        usual = statistics.median(self._intervals) if known else self.patience.silence
        return max(self.patience.silence, self.patience.silence_factor * usual)

    def silent(self, seconds: float) -> list[int]:
        """The running trials that wrote nothing for so long."""
        now = time.monotonic()
        return [number for number, live in self._live.items() if live.present and now - live.heard >= seconds]

    def kill(self, number: int) -> None:
        """End a running attempt at once."""
        self.executor.kill(number)
        del self._live[number]

    def kill_all(self) -> None:
        """End every one."""
        for number in list(self._live):
            self.kill(number)
