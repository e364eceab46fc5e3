"""What follows where the machine lost an attempt, or it hung: the trial is begun again, or given up."""

from dataclasses import dataclass, field

from archsearch.studies.engine.limits import Patience
from archsearch.studies.files.outcomes import CrowdedOut, DiskFull, Outcome


@dataclass(frozen=True, slots=True)
class Again:
    """The trial is begun again after so many seconds. alone: with a whole GPU. told: in words, empty for nothing."""

    seconds: float = 0.0
    alone: bool = False
    told: str = ""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The trial ends."""

    outcome: Outcome
    message: str


@dataclass(slots=True)
class _Count:
    """Attempts that the machine lost since the trial last moved on, and how often it hung."""

    tokens: int = 0
    lost: int = 0
    hung: int = 0


@dataclass(slots=True)
class Losses:
    """Those of every trial of a study, since its driver began."""

    patience: Patience
    _counts: dict[int, _Count] = field(default_factory=dict[int, _Count])

    def lost(self, number: int, cause: str, tokens: int) -> Again | GivenUp:
        """After an attempt that was lost at so many tokens: again, later each time; given up after too many losses
        without progress. DiskFull, for no other attempt could write either.
        """
        if cause.startswith(DiskFull.__name__):
            raise DiskFull(cause.removeprefix(f"{DiskFull.__name__}: "))
        if cause.startswith(CrowdedOut.__name__):
            told = f"trial {number} ran out of memory on a shared GPU; it is begun again alone"
            return Again(alone=True, told=told)
        count = self._counts.setdefault(number, _Count())
        if tokens > count.tokens:
            count.tokens, count.lost = tokens, 0
        count.lost += 1
        if cause.startswith("OutOfMemoryError") and count.lost > 1:
            return GivenUp(Outcome.OUT_OF_MEMORY, cause)
        if count.lost >= self.patience.attempts:
            return GivenUp(Outcome.INFRASTRUCTURE, cause)
        wait = min(self.patience.longest_back_off, self.patience.back_off * 2 ** (count.lost - 1))
        return Again(wait, told=f"trial {number} was lost ({cause}); it is begun again in {wait:.1f} s")

    def hung(self, number: int, seconds: float) -> Again | GivenUp:
        """After an attempt that was silent for so long: once more, then it has timed out."""
        count = self._counts.setdefault(number, _Count())
        count.hung += 1
        return Again() if count.hung == 1 else GivenUp(Outcome.TIMEOUT, f"no new line for {seconds:.0f} s, twice")
