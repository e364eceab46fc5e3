"""How long the driver waits for what, and when a study is over."""

from dataclasses import dataclass


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
