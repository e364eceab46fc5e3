"""Values that a user wrote in a Python file: `path/to/file.py`, or `path/to/file.py:NAME`.

The file is run as it stands at the call; nothing is cached, and nothing is written beside it. What it prints goes to
stderr, so that a command's output stays its own.
"""

import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stdout
from hashlib import sha256
from pathlib import Path
from threading import current_thread, main_thread
from traceback import extract_tb
from types import FrameType, ModuleType
from typing import TypeVar

from archsearch.errors import ArchsearchError

T = TypeVar("T")

SECONDS_TO_RUN = 60.0
"""For a file that defines values."""


def names_a_file(reference: str) -> bool:
    """Whether `reference` is a Python file, with or without `:NAME`, rather than a bare name."""
    return reference.endswith(".py") or ".py:" in reference


def load_value(reference: str, kind: type[T], *, default: str, error: type[ArchsearchError]) -> T:
    """The value of type `kind` that `reference` names; without `:NAME` the one called `default`.

    Raises `error` in one line for a file that is missing, fails, or defines no such value. An ArchsearchError of the
    file's own (a rule that means nothing) passes unchanged: it already says where.
    """
    path, name = _parts(reference, default)
    values = vars(_run(path, error))
    if name not in values:
        others = ", ".join(f"{path}:{other}" for other, value in values.items() if isinstance(value, kind))
        advice = f"it has {others}" if others else f"write {name} = {kind.__name__}(...)"
        raise error(f"{path} defines no {name}; {advice}")
    value = values[name]
    if not isinstance(value, kind):
        raise error(f"{path}:{name} must be a {kind.__name__}; got {type(value).__name__}")
    return value


def find_value(reference: str, defaults: Sequence[str], *, error: type[ArchsearchError]) -> object | None:
    """The value that `reference` names, of any type; without `:NAME` the first of `defaults` that the file defines,
    None where it defines none. Raises as `load_value`.
    """
    path, name = _parts(reference, "")
    values = vars(_run(path, error))
    return next((values[each] for each in ((name,) if name else defaults) if each in values), None)


def _parts(reference: str, default: str) -> tuple[Path, str]:
    if reference.endswith(".py"):
        return Path(reference), default
    path, _, name = reference.rpartition(":")
    return Path(path), name or default


def _run(path: Path, error: type[ArchsearchError]) -> ModuleType:
    """The file as a module of its own, under a name that no other file has."""
    try:
        code = compile(path.read_bytes(), str(path), "exec")
    except OSError as fault:
        raise error(f"cannot read {path}: {fault.strerror}") from fault
    except (SyntaxError, ValueError) as fault:
        line = f" line {fault.lineno}" if isinstance(fault, SyntaxError) and fault.lineno else ""
        raise error(f"{path}{line} is no Python: {getattr(fault, 'msg', fault)}") from fault
    module = ModuleType(f"archsearch_userfile_{sha256(str(path.resolve()).encode()).hexdigest()[:12]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and inspect look a class's module up there
    try:
        with redirect_stdout(sys.stderr), _in_time():
            exec(code, vars(module))
    except (ArchsearchError, KeyboardInterrupt):
        raise
    except BaseException as fault:  # a file may leave in any way, as by sys.exit
        lines = [frame.lineno for frame in extract_tb(fault.__traceback__) if frame.filename == str(path)]
        place = f"{path} line {lines[-1]}" if lines else str(path)
        if isinstance(fault, _TooLateError):
            raise error(f"{place} was still running after {SECONDS_TO_RUN} s; define values only") from fault
        said = " ".join(str(fault).split())
        raise error(f"{place} raised {type(fault).__name__}: {said}") from fault
    return module


class _TooLateError(BaseException):
    """A file that does not come to its end."""


@contextmanager
def _in_time() -> Generator[None]:
    """A block that ends with _TooLateError after SECONDS_TO_RUN, where this thread is the one that takes signals."""
    if current_thread() is not main_thread():
        yield
        return

    def late(number: int, frame: FrameType | None) -> None:
        raise _TooLateError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_TO_RUN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
