"""Which trials go on at the rungs: who may not be stopped, and what the workers are told."""

from collections.abc import Callable
from dataclasses import dataclass

from archsearch.studies.engine.tried import Tried
from archsearch.studies.files.directory import Measurement, StudyDirectory
from archsearch.studies.files.origins import BASELINE, ENTRANT, IMPORT, PROPOSAL
from archsearch.studies.search.rungs import Rungs

ASKED_FOR = ((BASELINE, "a baseline"), (ENTRANT, "an entrant"), (IMPORT, "a trial of an older study"))
"""What somebody asked for by name, no sampler, and what a decision calls it: it is never stopped."""


@dataclass(frozen=True, slots=True)
class Deciding:
    """Decides and writes it down. free_pass_every: see RungOptions. announce: told in words what was decided."""

    directory: StudyDirectory
    rungs: Rungs
    tried: Tried
    free_pass_every: int
    announce: Callable[[str], None]

    def replay(self) -> None:
        """Write the decisions whose files an earlier driver did not come to."""
        for decision in self.rungs.decisions:
            trial = self.directory.trial(decision.trial)
            if trial.path.exists() and trial.decision(decision.tokens) is None:
                trial.write_decision(decision)

    def decide(self, number: int, curve: list[Measurement]) -> None:
        """Decide about a trial at every rung that its curve has reached."""
        measured = {m.tokens: m for m in curve}
        for rung, tokens in enumerate(self.rungs.tokens[:-1]):
            if tokens not in measured or self.rungs.known(number, rung) is not None:
                continue
            decision = self.rungs.decide(number, rung, measured[tokens].values, pardon=self._pardon(number))
            self.directory.trial(number).write_decision(decision)
            if decision.stop:  # that a trial goes on is the rule, and in the rungs of its status
                self.announce(f"trial {number} stops at {tokens:,} tokens: {decision.reason}")

    def _pardon(self, number: int) -> str | None:
        """Why a trial may not be stopped, if it may not."""
        origin = self.tried.origin(number)
        if origin != PROPOSAL:
            return next(what for kind, what in ASKED_FOR if origin.startswith(kind))
        if self.free_pass_every and self.tried.leader(number) % self.free_pass_every == self.free_pass_every - 1:
            return "a free pass"
        return None
