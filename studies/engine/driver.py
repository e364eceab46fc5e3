"""The one process that decides: it proposes, starts attempts, decides rungs and tells Optuna what the files say.

Everything it knows can be read back from the study's directory, so beginning and resuming are the same code:
`Driver.run` first settles what an earlier driver left, then loops until enough trials have ended.
"""

import hashlib
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from archsearch.errors import ArchsearchError, first_line
from archsearch.holes import Choose, Chosen, Hole
from archsearch.studies.files import records
from archsearch.studies.files.directory import Measurement, Result, StudyDirectory, TrialDirectory
from archsearch.studies.files.origins import PROPOSAL
from archsearch.studies.files.outcomes import CrowdedOut, Outcome
from archsearch.studies.search.listing import listed
from archsearch.studies.search.proposals import Proposals
from archsearch.studies.search.rungs import Rungs
from archsearch.studies.search.telling import ending, missed_words
from archsearch.studies.tasks.direction import Direction
from archsearch.studies.workers.clerk import Assignment
from archsearch.studies.workers.executor import Departure, Executor

DUPLICATES_BEFORE_LISTING = 3
DUPLICATES_BEFORE_RANDOM = 20
DUPLICATES_BEFORE_END = 60
"""Where the space cannot be listed."""

BUGS_BEFORE_END = 3


class Point(Protocol):
    """One resolved point of a search space."""

    @property
    def variant_hash(self) -> str:
        """Equal for two spellings of one variant."""
        ...

    def record(self) -> dict[str, object]:
        """Its part of trial.json: plain data, from which a worker rebuilds it."""
        ...


class BugError(Exception):
    """The study ended because its trials keep failing in the same place of our own code; `traceback` shows where."""

    def __init__(self, traceback: str) -> None:
        """`traceback` is the last trial's."""
        super().__init__(f"{BUGS_BEFORE_END} trials in a row failed in the same place")
        self.traceback = traceback


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the driver waits for what, in seconds.

    poll: between two looks at the files. back_off, longest_back_off: before a lost attempt is begun again, doubled each
    time. attempts: attempts without progress before a trial is given up. silence: the least time without a new line
    after which a trial hangs; the time is `silence_factor` medians of the study's own intervals where that is longer,
    and `silence_factor` times `silence` until there are five.
    """

    poll: float = 0.05
    back_off: float = 0.5
    longest_back_off: float = 60.0
    attempts: int = 20
    silence: float = 600.0
    silence_factor: float = 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """When the study is over. trials: proposals beside the enqueued points. seconds: no new trial after so long."""

    trials: int
    seconds: float | None = None


@dataclass(slots=True)
class _Live:
    """A running attempt, as far as the driver has read it."""

    assignment: Assignment
    heard: float
    lines: int = 0
    present: bool = False


@dataclass(slots=True)
class _Losses:
    """Attempts that the machine lost since the trial last moved on, and how often it hung."""

    tokens: int = 0
    lost: int = 0
    hung: int = 0


@dataclass(slots=True)
class _Waiting:
    """A trial that waits for a slot until `ready` (monotonic seconds); alone: for a whole GPU."""

    number: int
    ready: float = 0.0
    alone: bool = False


@dataclass(slots=True)
class Driver:
    """One run of a study. The caller holds the study's lock.

    resolve: turns a chooser into a point of the space. announce: told in words what happened. on_look: called each
    time round. free_pass_every: see RungOptions. objectives: as in the plan. companions: from the choices of a
    proposal to those of trials that go with it, as the same structure at other learning rates; they follow at once, are
    part of the same proposal, and may be stopped alone. replicate: the seed on which a variant that has so many trials
    runs again when it is proposed again; None where it has enough. taken_over: the end of a trial of an older study
    that counts for a proposal, its files copied; None where there is none. stopped: whether it was asked to stop.
    """

    directory: StudyDirectory
    proposals: Proposals
    rungs: Rungs
    executor: Executor
    resolve: Callable[[Choose], Point]
    suggest: Callable[[Any], Choose]
    objectives: Mapping[str, Direction]
    limits: Limits
    free_pass_every: int = 0
    patience: Patience = Patience()
    announce: Callable[[str], None] = lambda text: None
    on_look: Callable[[], None] = lambda: None
    companions: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]] = lambda choices: ()
    replicate: Callable[[int], int | None] = lambda count: None
    taken_over: Callable[[TrialDirectory, Mapping[str, Any]], Result | None] = lambda trial, proposal: None
    stopped: bool = False
    _live: dict[int, _Live] = field(default_factory=dict[int, _Live])
    _queue: list[_Waiting] = field(default_factory=list[_Waiting])
    _losses: dict[int, _Losses] = field(default_factory=dict[int, _Losses])
    _variants: dict[str, int] = field(default_factory=dict[str, int])
    _tried: dict[str, int] = field(default_factory=dict[str, int])
    _origins: dict[int, str] = field(default_factory=dict[int, str])
    _leaders: dict[int, int] = field(default_factory=dict[int, int])
    _duplicates_in_a_row: int = 0
    _proposed: int = 0
    _intervals: deque[float] = field(default_factory=lambda: deque[float](maxlen=200))
    _listed: Mapping[str, Mapping[str, Chosen]] | None = None
    _looked: bool = False
    _bugs: list[list[str]] = field(default_factory=list[list[str]])
    _began: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Carry the study to its end. BugError if it cannot go on; the executor is left to the caller."""
        self._reconcile()
        while not self._is_over():
            departures = self.executor.departures(self.patience.poll)
            self._read_metrics()
            for departure in departures:
                self._collect(departure)
            self._end_hung_trials()
            self.on_look()
        if not self.stopped and self._proposed < self.limits.trials and self._is_spent():
            self.directory.write_spent(len(self._variants))
            self.announce(f"the space is spent: {len(self._variants)} variants were tried, and nothing else is left")

    def _is_over(self) -> bool:
        """Whether there is nothing left to wait for; begins what can begin."""
        if self.directory.stop_asked():
            if self.directory.stop_is_urgent():
                for number in list(self._live):
                    self.executor.kill(number)
                self._live.clear()
            self.stopped = True
            return not self._live
        self._fill_slots()
        return not self._live and not self._queue

    # Reconciliation

    def _reconcile(self) -> None:
        """Settle what an earlier driver left: files first, then what Optuna was not told."""
        for decision in self.rungs.decisions:
            trial = self.directory.trial(decision.trial)
            if trial.path.exists() and trial.decision(decision.tokens) is None:
                trial.write_decision(decision)
        for number, trial in self.directory.trials().items():
            with records.read_as_written(trial.path / "trial.json"):
                self._remember(number, trial.proposal() or {})
        if self._leaders:  # only the newest can be without its companions: they are enqueued before anything else
            newest = max(self._leaders.values())
            self._enqueue_companions(newest, self.directory.trial(newest).proposal() or {})
        running = self.proposals.running()
        for number in running:  # before anything is told, so that the sampler sees what it saw
            if self.directory.trial(number).proposal() is None:
                self._finish_proposal(number)
        for number in running:
            self._take_up(number)

    def _take_up(self, number: int) -> None:
        """Tell a trial that has its result, queue one that has none."""
        trial = self.directory.trial(number)
        result, proposal = trial.result(), trial.proposal() or {}
        if result is None and proposal.get("duplicate_of") is None and not trial.is_present(trial.attempt()):
            result = self.taken_over(trial, proposal)
        if result is not None:
            self._tell(number, result)
        elif proposal.get("missed") and proposal.get("duplicate_of") is None:
            self._end(number, Outcome.OVER_BUDGET, missed_words(proposal["missed"]))
        elif proposal.get("broken") and proposal.get("duplicate_of") is None:
            self._end(number, Outcome.COMPILE_ERROR, str(proposal["broken"]))
        else:
            self._queue_or_end(number, proposal.get("duplicate_of"))

    def _remember(self, number: int, proposal: Mapping[str, Any]) -> None:
        """Count a proposal that stands in the files."""
        origin, leader = str(proposal["origin"]), proposal.get("leader")
        self._origins[number] = origin
        self._leaders[number] = number if leader is None else int(leader)
        if proposal.get("duplicate_of") is not None:
            self._duplicates_in_a_row += leader is None
            return
        variant = str(proposal["variant_hash"])
        self._variants.setdefault(variant, number)
        self._tried[variant] = self._tried.get(variant, 0) + 1
        if origin == PROPOSAL and leader is None:
            self._duplicates_in_a_row = 0
            self._proposed += 1

    # Proposing

    def _fill_slots(self) -> None:
        """Begin trials while there are slots: those that wait first, then new ones.

        A lost trial keeps its slot until it is begun again: what is proposed after it is to know how it ended.
        """
        while len(self._live) < self.executor.slots and not self._one_is_alone():
            ready = next((w for w in self._queue if w.ready <= time.monotonic()), None)
            if ready is not None:
                self._queue.remove(ready)
                self._begin(ready.number, alone=ready.alone)
            elif len(self._live) + len(self._queue) < self.executor.slots and self._may_propose():
                self._propose()
            else:
                return

    def _one_is_alone(self) -> bool:
        """Whether nothing may begin beside a trial that runs alone, or before one that waits for the others to end."""
        waits = bool(self._live) and any(waiting.alone for waiting in self._queue)
        return waits or any(live.assignment.alone for live in self._live.values())

    def _may_propose(self) -> bool:
        if self.limits.seconds is not None and time.monotonic() - self._began > self.limits.seconds:
            return False
        if self.proposals.waiting() > 0:
            return True
        return self._proposed < self.limits.trials and not self._is_spent()

    def _is_spent(self) -> bool:
        """Whether every variant was tried, or so many proposals in a row were that it seems so."""
        if self.proposals.spent():
            return True
        if self._duplicates_in_a_row < DUPLICATES_BEFORE_LISTING:
            return False
        left = self._untried()
        return self._duplicates_in_a_row >= DUPLICATES_BEFORE_END if left is None else not left

    def _untried(self) -> list[Mapping[str, Chosen]] | None:
        """What no trial has tried, or not on all of its seeds; None where the space cannot be listed."""
        if not self._looked:
            self._listed, self._looked = listed(self.resolve), True
        if self._listed is None:
            return None
        return [choices for variant, choices in self._listed.items() if self._is_open(variant)]

    def _is_open(self, variant: str) -> bool:
        """Whether a proposal of a variant would be trained: it is new, or has a seed left to meet."""
        first = self._variants.get(variant)
        return first is None or self._next_seed(variant, first) is not None

    def _propose(self) -> None:
        trial, sampler = self.proposals.ask(at_random=self._at_random(), among=self._among())
        self._take_up(self._write_proposal(trial, sampler))

    def _finish_proposal(self, number: int) -> None:
        """Draw the rest of a proposal whose driver died before trial.json was written."""
        trial, sampler = self.proposals.reopen(number, at_random=self._at_random(), among=self._among())
        self._write_proposal(trial, sampler)

    def _at_random(self) -> bool:
        return self._duplicates_in_a_row >= DUPLICATES_BEFORE_RANDOM

    def _among(self) -> Sequence[Mapping[str, Chosen]]:
        """What chance draws from where the space can be listed, else nothing."""
        return (self._untried() or ()) if self._at_random() else ()

    def _write_proposal(self, trial: Any, sampler: str) -> int:
        """Draw the point and write trial.json, which says if an earlier trial was the same variant; the trial's
        number.
        """
        number = int(trial.number)
        variant, drawn = self._drawn(trial)
        earlier = self._variants.get(variant)
        origin, leader = self.proposals.origin(number), self.proposals.leader(number)
        seed = None
        if earlier is not None and origin == PROPOSAL and leader is None:
            seed = self._next_seed(variant, earlier)
        record: dict[str, object] = {
            "number": number,
            "origin": origin,
            "sampler": sampler if origin == PROPOSAL and leader is None else "enqueued",
            "leader": leader,
            "duplicate_of": earlier if seed is None else None,
            "variant_hash": variant,
            **drawn,
            **({} if seed is None else {"replicate_of": earlier, "seed": seed}),
        }
        self.directory.trial(number).write_proposal(record)
        self._remember(number, record)
        self._enqueue_companions(number, record)
        return number

    def _drawn(self, trial: Any) -> tuple[str, dict[str, object]]:
        """The variant's hash and the point's record; of choices that make no point, the choices and why."""
        choices: dict[str, Chosen] = {}
        choose = self.suggest(trial)

        def note(path: str, hole: Hole) -> Chosen:
            choices[path] = choose(path, hole)
            return choices[path]

        try:
            point = self.resolve(note)
        except ArchsearchError as error:
            spelled = json.dumps(choices, sort_keys=True)
            return hashlib.sha256(spelled.encode()).hexdigest(), {"choices": choices, "broken": first_line(error)}
        return point.variant_hash, point.record()

    def _next_seed(self, variant: str, first: int) -> int | None:
        """The seed of the next trial of a variant; None if it is not to have one, or its rule has failed."""
        end = self.directory.trial(first).result()
        if end is not None and end.outcome.blames_the_rule:
            return None
        return self.replicate(self._tried[variant])

    def _enqueue_companions(self, number: int, proposal: Mapping[str, Any]) -> None:
        """Propose what goes with a proposal next; those that are there already are not proposed again."""
        if all(proposal.get(name) is None for name in ("leader", "duplicate_of", "replicate_of")):
            for choices in self.companions(proposal["choices"]):
                self.proposals.enqueue(choices, str(proposal["origin"]), leader=number)

    def _queue_or_end(self, number: int, duplicate_of: int | None) -> None:
        if duplicate_of is None:
            self._queue.append(_Waiting(number))
        else:
            self._end(number, Outcome.DUPLICATE, f"the same variant as trial {duplicate_of}")

    # Attempts

    def _begin(self, number: int, *, alone: bool = False) -> None:
        """Start the next attempt at a trial; the fence shuts out whatever is left of the ones before."""
        trial = self.directory.trial(number)
        attempt = trial.attempt() + 1
        trial.raise_fence(attempt)
        assignment = Assignment(self.directory.path, number, attempt, alone)
        self._live[number] = _Live(assignment, heard=time.monotonic(), lines=len(trial.curve()))
        self.executor.start(assignment)
        self.announce(f"trial {number} begins ({self._origins[number]}, attempt {attempt})")

    def _read_metrics(self) -> None:
        """Note every new line of the running trials and decide the rungs they reached."""
        for number, live in self._live.items():
            trial = self.directory.trial(number)
            if not live.present and trial.is_present(live.assignment.attempt):
                live.present, live.heard = True, time.monotonic()  # it may have waited for a node until now
            curve = trial.curve()
            if len(curve) > live.lines:
                now = time.monotonic()
                self._intervals.append((now - live.heard) / (len(curve) - live.lines))
                live.heard, live.lines = now, len(curve)
            self._decide_rungs(number, curve)

    def _decide_rungs(self, number: int, curve: list[Measurement]) -> None:
        measured = {m.tokens: m for m in curve}
        for rung, tokens in enumerate(self.rungs.tokens[:-1]):
            if tokens not in measured or self.rungs.known(number, rung) is not None:
                continue
            decision = self.rungs.decide(number, rung, measured[tokens].values, pardon=self._pardon(number))
            self.directory.trial(number).write_decision(decision)
            verb = "stops" if decision.stop else "goes on"
            self.announce(f"trial {number} {verb} at {tokens} tokens: {decision.reason}")

    def _pardon(self, number: int) -> str | None:
        """Why a trial may not be stopped, if it may not."""
        if self._origins[number] != PROPOSAL:
            return "a baseline"
        if self.free_pass_every and self._leaders[number] % self.free_pass_every == self.free_pass_every - 1:
            return "a free pass"
        return None

    def _collect(self, departure: Departure) -> None:
        """Tell a finished trial, or begin a lost one again."""
        number = departure.assignment.number
        live = self._live.get(number)
        if live is None or live.assignment != departure.assignment:
            return
        del self._live[number]
        result = self.directory.trial(number).result()
        if result is not None:
            self._tell(number, result)
        elif not self.directory.stop_asked():
            self._lose(number, departure.cause or "the worker left no result")

    def _lose(self, number: int, cause: str) -> None:
        """Queue a trial that the machine lost, later each time; give it up after too many losses without progress."""
        if cause.startswith(CrowdedOut.__name__):
            self._queue.insert(0, _Waiting(number, alone=True))
            self.announce(f"trial {number} ran out of memory on a shared GPU; it is begun again alone")
            return
        curve = self.directory.trial(number).curve()
        tokens = curve[-1].tokens if curve else 0
        losses = self._losses.setdefault(number, _Losses())
        if tokens > losses.tokens:
            losses.tokens, losses.lost = tokens, 0
        losses.lost += 1
        if cause.startswith("OutOfMemoryError") and losses.lost > 1:
            self._end(number, Outcome.OUT_OF_MEMORY, cause)
            return
        if losses.lost >= self.patience.attempts:
            self._end(number, Outcome.INFRASTRUCTURE, cause)
            return
        wait = min(self.patience.longest_back_off, self.patience.back_off * 2 ** (losses.lost - 1))
        self._queue.append(_Waiting(number, ready=time.monotonic() + wait))
        self.announce(f"trial {number} was lost ({cause}); it is begun again in {wait:.1f} s")

    def _end_hung_trials(self) -> None:
        """Kill trials that wrote nothing for too long: once more, then they have timed out."""
        usual = statistics.median(self._intervals) if len(self._intervals) >= 5 else self.patience.silence
        limit = max(self.patience.silence, self.patience.silence_factor * usual)
        for number, live in list(self._live.items()):
            if not live.present or time.monotonic() - live.heard < limit:
                continue
            self.executor.kill(number)
            del self._live[number]
            losses = self._losses.setdefault(number, _Losses())
            losses.hung += 1
            if losses.hung > 1:
                self._end(number, Outcome.TIMEOUT, f"no new line for {limit:.0f} s, twice")
            else:
                self._queue.append(_Waiting(number))

    # Endings

    def _end(self, number: int, outcome: Outcome, message: str) -> None:
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
        self._tell(number, result)

    def _tell(self, number: int, result: Result) -> None:
        """Tell Optuna what a result file says, and end the study if our own code keeps failing in one place."""
        trial = self.directory.trial(number)
        proposal, curve = trial.proposal() or {}, trial.curve()
        told = ending(result, proposal, curve, self.rungs, self.objectives, number)
        if told.values is not None:
            self.proposals.keep_files(number, proposal, curve)
        self.proposals.tell(number, told)
        self._losses.pop(number, None)
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
