"""How a trial may end, whose fault it was, and what follows from that."""

import errno
import socket
from enum import Enum


class Outcome(Enum):
    """The class of a trial's end, as records and reports name it."""

    COMPLETE = "complete"
    STOPPED = "stopped"
    UNSTABLE = "unstable"
    OUT_OF_MEMORY = "out_of_memory"
    COMPILE_ERROR = "compile_error"
    TIMEOUT = "timeout"
    INFRASTRUCTURE = "infrastructure"
    BUG = "bug"
    DUPLICATE = "duplicate"
    OVER_BUDGET = "over_budget"

    @property
    def blames_the_rule(self) -> bool:
        """Whether the sampler is to learn from it: the fault lies with the variant, not with the machine or with us."""
        return self in (Outcome.UNSTABLE, Outcome.OUT_OF_MEMORY, Outcome.COMPILE_ERROR, Outcome.TIMEOUT)


FULL = (errno.ENOSPC, errno.EDQUOT)
"""Of a disk that takes nothing more."""

MACHINE_ERRORS = (*FULL, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)


class Unstable(Exception):
    """A loss, a gradient norm or an objective is no longer finite."""


class CrowdedOut(Exception):
    """Out of memory on a GPU that other trials shared, so that the variant may yet fit alone."""


class PeerLost(Exception):
    """Another process of the same trial is gone."""


class DiskFull(Exception):
    """A disk takes nothing more, so that nothing can go on until somebody has freed some of it; the message says what
    could not be written, and on which machine.
    """


class Unbuildable(Exception):
    """The variant cannot be compiled or does not pass its checks, so no time goes into training it."""


def full_disk(error: BaseException) -> DiskFull | None:
    """What an exception says of a full disk that it came from; None if it came from none."""
    for cause in _causes(error):
        if isinstance(cause, DiskFull):
            return cause
        if isinstance(cause, OSError) and cause.errno in FULL:
            file = cause.filename or "a file"
            return DiskFull(f"{file} on {socket.gethostname()} cannot be written: {cause.strerror}")
    return None


def classify(error: BaseException) -> Outcome:
    """The class of an exception that ended a trial's own code."""
    if full_disk(error) is not None:  # whatever else it was made into on its way
        return Outcome.INFRASTRUCTURE
    for cause in _causes(error):
        if isinstance(cause, CrowdedOut | PeerLost):
            return Outcome.INFRASTRUCTURE
        if isinstance(cause, Unstable):
            return Outcome.UNSTABLE
        if isinstance(cause, Unbuildable) or type(cause).__name__ in ("CompilationError", "OutOfResources"):
            return Outcome.COMPILE_ERROR
        if isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError":
            return Outcome.OUT_OF_MEMORY
        if isinstance(cause, OSError) and cause.errno in MACHINE_ERRORS:
            return Outcome.INFRASTRUCTURE
    return Outcome.BUG


def _causes(error: BaseException) -> list[BaseException]:
    """`error` and what it was raised from, newest first."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return chain
