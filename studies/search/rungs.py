"""Rungs: the budgets at which a trial is compared with all that ever came so far, and goes on or stops.

A decision is a record, appended to the log of the study before it acts; what is in the log is never computed again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from archsearch.errors import ConfigError, StudyError
from archsearch.studies.files import records
from archsearch.studies.files.decisions import Decision, read_decisions
from archsearch.studies.search.fronts import losses, place
from archsearch.studies.tasks.direction import Direction
from archsearch.typed_data import check_fields

MOST_RUNGS = 64
"""Even where each only doubles the one before, so many part a budget of 2^63 tokens."""


@dataclass(frozen=True, slots=True)
class RungOptions:
    """How many rungs there are and how strict they are.

    count: rungs, the full budget among them, 1 .. 64 (1: no trial is stopped). eta: each rung is eta times the one
    before, and the best 1/eta of a rung go on; > 1. min_peers: so many always go on first; None is 2 eta.
    free_pass_every: every so many-th proposal runs to the end whatever its rank; 0 is none.
    """

    count: int = 4
    eta: int = 4
    min_peers: int | None = None
    free_pass_every: int = 10

    def __post_init__(self) -> None:
        """Refuse other types and numbers out of range."""
        check_fields(self, "rungs")
        for name, value, least in (
            ("count", self.count, 1),
            ("eta", self.eta, 2),
            ("free_pass_every", self.free_pass_every, 0),
        ):
            if value < least:
                raise ConfigError(f"rungs.{name} must be >= {least}; got {value}")
        if self.count > MOST_RUNGS:
            raise ConfigError(f"rungs.count must be <= {MOST_RUNGS}; got {self.count}; the first would see no token")
        if self.min_peers is not None and self.min_peers < 1:
            raise ConfigError(f"rungs.min_peers must be >= 1; got {self.min_peers}")

    @property
    def fractions(self) -> tuple[float, ...]:
        """The share of the budget at each rung, rising, the last one 1."""
        return tuple(float(self.eta) ** -(self.count - 1 - i) for i in range(self.count))

    @property
    def peers_before_stops(self) -> int:
        """How many trials reach a rung before one can be stopped there."""
        return 2 * self.eta if self.min_peers is None else self.min_peers


class Rungs:
    """The decisions of one study, in the order in which they were made, and the rule that makes the next one."""

    def __init__(self, log: Path, options: RungOptions, objectives: Mapping[str, Direction], total_tokens: int) -> None:
        """Read `log` back; its torn tail must be cut before."""
        self._log = log
        self._options = options
        self._objectives = objectives
        self.tokens = rung_tokens(options, total_tokens)
        self._decisions = {(d.trial, d.rung): d for d in read_decisions(log)}

    @property
    def decisions(self) -> list[Decision]:
        """Every decision so far, oldest first."""
        return list(self._decisions.values())

    def known(self, trial: int, rung: int) -> Decision | None:
        """The decision about `trial` at `rung`, if there is one."""
        return self._decisions.get((trial, rung))

    def stopped(self, trial: int) -> Decision | None:
        """The decision that stopped `trial`, if one did."""
        return next((d for d in self._decisions.values() if d.trial == trial and d.stop), None)

    def decide(self, trial: int, rung: int, values: Mapping[str, float], *, pardon: str | None) -> Decision:
        """Decide about `trial` at `rung` (0-based, not the last), log it, and return it; a known decision is returned
        as it is.

        values: the objectives at that rung, finite. pardon: why the trial may not be stopped, or None.
        """
        known = self.known(trial, rung)
        if known is not None:
            return known
        peers = [d for d in self._decisions.values() if d.rung == rung]
        points = [losses(d.values, self._objectives) for d in peers] + [losses(values, self._objectives)]
        rank = place(points, len(peers))
        stop, reason = self._verdict(rank, len(points), pardon)
        decision = Decision(
            trial=trial,
            rung=rung,
            tokens=self.tokens[rung],
            values={name: values[name] for name in self._objectives},
            rank=rank,
            peers=len(points),
            better=rank / max(1, len(peers)),
            stop=stop,
            reason=reason,
        )
        records.append_json(self._log, decision.record())
        self._decisions[trial, rung] = decision
        return decision

    def _verdict(self, rank: int, peers: int, pardon: str | None) -> tuple[bool, str]:
        keep = max(1, peers // self._options.eta)
        if pardon is not None:
            return False, pardon
        if peers < self._options.peers_before_stops:
            return False, f"fewer than {self._options.peers_before_stops} have come"
        if rank < keep:
            return False, f"among the best {keep} of {peers}"
        return True, f"not among the best {keep} of {peers}"


def rung_tokens(options: RungOptions, total_tokens: int) -> tuple[int, ...]:
    """The rungs as tokens of a whole trial, rising. StudyError if the budget is too small to tell them apart."""
    tokens = tuple(max(1, round(fraction * total_tokens)) for fraction in options.fractions)
    if len(set(tokens)) < len(tokens):
        raise StudyError(f"{options.count} rungs need a larger budget than {total_tokens} tokens; use fewer rungs")
    return tokens
