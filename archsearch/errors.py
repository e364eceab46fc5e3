"""What can go wrong, one class a stage.

Every message says what must hold, what came, where, and what to do. The command line prints it as one line and exits
with `exit_code`.
"""

from __future__ import annotations


class ArchsearchError(Exception):
    """Bad input: nothing was written and nothing is lost."""

    exit_code = 2


class HoleError(ArchsearchError):
    """A hole that cannot be filled, or a choice that no hole takes."""


class RuleError(ArchsearchError):
    """A rule that means nothing, or that is not affine in the state."""


class OperandError(ArchsearchError):
    """A tensor of a call: missing, unknown, of a wrong shape, dtype or device."""


class BackendError(ArchsearchError):
    """A backend that cannot run here."""


class ConfigError(ArchsearchError):
    """A configuration: unknown key, wrong type, value out of range."""


class TaskError(ArchsearchError):
    """A task that cannot be built from what was given."""


class SpaceError(ArchsearchError):
    """A search space without a point, or a point that is not in it."""


class StudyError(ArchsearchError):
    """A study directory that is missing, damaged or of another study."""


class StudyLockedError(StudyError):
    """Another driver holds the study."""

    exit_code = 3


class ClusterLostError(StudyError):
    """The cluster that carried a study's trials is gone.

    A process that had joined it leaves at once when it has said so: its own end would wait for the cluster too.
    """


class DiskFullError(StudyError):
    """A study that runs has no room to write."""


class CheckpointError(ArchsearchError):
    """A file that is no checkpoint, or one that could not be written."""


class ExportError(ArchsearchError):
    """An export whose target, source or hashes do not hold."""


class ProbeError(ArchsearchError):
    """A probe of what is no trained language model, or of a text that it cannot read."""


def first_line(error: BaseException) -> str:
    """The first line of what an exception says; the name of its class where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def described(error: BaseException) -> str:
    """The class of an exception and the first line of what it says, `KeyError: 'key'`."""
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"
