"""The one process that decides: its loop, from what an earlier driver left to the end of the study.

Everything it knows can be read back from the study's directory, so beginning and resuming are the same code:
`Driver.run` first settles what an earlier driver left, then loops until enough trials have ended. What is tried next,
what runs, who goes on at a rung and how trials end are its parts.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from archsearch.studies.engine.attempts import Attempts
from archsearch.studies.engine.deciding import Deciding
from archsearch.studies.engine.endings import Endings
from archsearch.studies.engine.limits import Limits
from archsearch.studies.engine.losses import Again, GivenUp, Losses
from archsearch.studies.engine.proposing import Proposer
from archsearch.studies.files.directory import Result, StudyDirectory, TrialDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.search.proposals import Proposals
from archsearch.studies.search.telling import missed_words
from archsearch.studies.workers.executor import Departure


@dataclass(slots=True)
class Driver:
    """One run of a study. The caller holds the study's lock.

    announce: told in words what happened. on_look: called each time round. taken_over: the end of a trial of an older
    study that counts for a proposal, its files copied; None where there is none. stopped: whether it was asked to stop.
    """

    directory: StudyDirectory
    proposals: Proposals
    proposer: Proposer
    attempts: Attempts
    losses: Losses
    deciding: Deciding
    endings: Endings
    limits: Limits
    announce: Callable[[str], None]
    on_look: Callable[[], None]
    taken_over: Callable[[TrialDirectory, Mapping[str, Any]], Result | None]
    stopped: bool = False
    _began: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Carry the study to its end. BugError if it cannot go on; the workers are left to the caller."""
        self._reconcile()
        while not self._is_over():
            departures = self.attempts.executor.departures(self.attempts.patience.poll)
            for number, curve in self.attempts.curves():
                self.deciding.decide(number, curve)
            for departure in departures:
                self._collect(departure)
            self._end_hung_trials()
            self.on_look()
        tried = self.proposer.tried
        if not self.stopped and tried.proposed < self.limits.trials and self.proposer.is_spent():
            self.directory.write_spent(tried.variants)
            self.announce(f"the space is spent: {tried.variants} variants were tried, and nothing else is left")

    def _is_over(self) -> bool:
        """Whether there is nothing left to wait for; begins what can begin."""
        if self.directory.stop_asked():
            if self.directory.stop_is_urgent():
                self.attempts.kill_all()
            self.stopped = True
            return not self.attempts.any_run
        self._fill_slots()
        return not self.attempts.any_left

    def _reconcile(self) -> None:
        """Settle what an earlier driver left: files first, then what Optuna was not told."""
        self.deciding.replay()
        self.proposer.read_back()
        running = self.proposals.running()
        for number in running:  # before anything is told, so that the sampler sees what it saw
            if self.directory.trial(number).proposal() is None:
                self.proposer.finish(number)
        for number in running:
            self._take_up(number)

    def _take_up(self, number: int) -> None:
        """Tell a trial that has its end, or needs no training to have one; queue any other."""
        trial = self.directory.trial(number)
        result, proposal = trial.result(), trial.proposal() or {}
        earlier = proposal.get("duplicate_of")
        if result is None and earlier is None and not trial.is_present(trial.attempt()):
            result = self.taken_over(trial, proposal)
        if result is not None:
            self.endings.tell(number, result)
        elif earlier is not None:
            self.endings.end(number, Outcome.DUPLICATE, f"the same variant as trial {earlier}")
        elif proposal.get("missed"):
            self.endings.end(number, Outcome.OVER_BUDGET, missed_words(proposal["missed"]))
        elif proposal.get("broken"):
            self.endings.end(number, Outcome.COMPILE_ERROR, str(proposal["broken"]))
        else:
            self.attempts.queue(number)

    def _fill_slots(self) -> None:
        """Begin trials while there are slots: those that wait first, then new ones."""
        while self.attempts.may_begin():
            begun = self.attempts.begin_waiting()
            if begun is not None:
                origin = self.proposer.tried.origin(begun.number)
                self.announce(f"trial {begun.number} begins ({origin}, attempt {begun.attempt})")
            elif self.attempts.has_room() and self._may_propose():
                self._take_up(self.proposer.propose())
            else:
                return

    def _may_propose(self) -> bool:
        if self.limits.seconds is not None and time.monotonic() - self._began > self.limits.seconds:
            return False
        if self.proposals.waiting() > 0:
            return True
        return self.proposer.tried.proposed < self.limits.trials and not self.proposer.is_spent()

    def _collect(self, departure: Departure) -> None:
        """Tell a finished trial, or begin a lost one again."""
        if not self.attempts.departed(departure):
            return
        number = departure.assignment.number
        trial = self.directory.trial(number)
        result = trial.result()
        if result is not None:
            self.endings.tell(number, result)
        elif not self.directory.stop_asked():
            curve = trial.curve()
            cause = departure.cause or "the worker left no result"
            self._go_on(number, self.losses.lost(number, cause, curve[-1].tokens if curve else 0))

    def _end_hung_trials(self) -> None:
        limit = self.attempts.longest_silence()
        for number in self.attempts.silent(limit):
            self.attempts.kill(number)
            self._go_on(number, self.losses.hung(number, limit))

    def _go_on(self, number: int, how: Again | GivenUp) -> None:
        """Begin a trial again, or give it up."""
        if isinstance(how, GivenUp):
            self.endings.end(number, how.outcome, how.message)
            return
        self.attempts.queue(number, seconds=how.seconds, alone=how.alone)
        if how.told:
            self.announce(how.told)
