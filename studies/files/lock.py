"""One driver a study: an advisory lock that the kernel releases when its holder dies.

Where the kernel cannot know that a holder is gone, as on another machine of a shared file system, or cannot lock at
all, the user may say so: a lock taken by force is a new file in the old one's place, and a holder that lives after all
finds that and leaves.
"""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from archsearch.errors import StudyError, StudyLockedError
from archsearch.studies.files.records import naming

LOOKS, SECONDS_BETWEEN_LOOKS = 3, 0.05
"""At a lock that is held: who only asks whether it is holds it for an instant too."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who wrote itself down in a lock's file."""

    pid: int
    host: str
    started: str

    def __str__(self) -> str:
        """In words."""
        return f"process {self.pid} on {self.host} since {self.started}"

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine."""
        return self.host == socket.gethostname()

    @property
    def is_gone(self) -> bool:
        """Whether it is known to have ended; of another machine's process nothing is known."""
        if not self.is_here:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that is held."""

    path: Path
    inode: int

    def check(self) -> None:
        """StudyLockedError if another driver has taken it by force."""
        if _inode(self.path) != self.inode:
            taker = _holder(self.path) or "another driver"
            raise StudyLockedError(
                f"a study has one driver at a time; {self.path.parent} was taken by {taker}; "
                "this one leaves, and nothing is lost"
            )


@contextlib.contextmanager
def driver_lock(path: Path, *, force: bool = False, command: str = "") -> Generator[Lock]:
    """Hold `path` for the length of the block; StudyLockedError names the driver that already does.

    The file stays when the lock is given back: only the lock on it says that a driver is alive.
    force: take it from a holder that is not known to live, and do without on a file system that has no locks; command:
    what a user would call to have that, for the messages.
    """
    file, by_kernel = _claimed(path, force=force, command=command)
    with file:
        file.truncate(0)
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with naming(path):
            json.dump({"pid": os.getpid(), "host": socket.gethostname(), "started": started}, file)
            file.flush()
        try:
            yield Lock(path, os.fstat(file.fileno()).st_ino)
        finally:
            if not by_kernel:
                file.truncate(0)  # without a lock on it the file alone says whether somebody is there


def slow_to_leave(path: Path, seconds: float, *, now: bool, stop: str, command: str) -> str:
    """Of a holder that was asked to leave so many seconds ago, and now if it was not to wait for its trials: what is
    waited for, and what can be done.

    stop, command: what a user would call to have it leave now, and to take its lock. StudyLockedError where there is
    nothing to wait for: it has ended, or does not answer from another machine.
    """
    holder = _holder(path)
    if holder is None or holder.is_gone:
        raise StudyLockedError(_held_message(path, command))
    asked = f"{holder} was asked to stop {seconds:.0f} s ago"
    if now and not holder.is_here:
        raise StudyLockedError(f"{asked} and does not answer; if that machine is gone, {command}")
    if now:
        return f"{asked}: still waiting for it; kill {holder.pid} ends it too, and nothing is lost"
    waiting = f"{asked}: waiting for its trials' next checkpoints, which {stop} does not wait for"
    return waiting if holder.is_here else f"{waiting}; if that machine is gone, {command}"


def is_held(path: Path) -> bool:
    """Whether a driver holds the lock now; where there are no locks, whether one is written down that may live."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        holder = _holder(path)
        return holder is not None and not holder.is_gone
    return False


def _claimed(path: Path, *, force: bool, command: str) -> tuple[TextIO, bool]:
    """The lock's file, and whether the kernel keeps it locked."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(path, "a+", encoding="utf-8"))
        try:
            taken = _take(file)
        except OSError as error:
            if not force or _lives(_holder(path)):
                raise StudyError(_unlockable_message(path, error, command)) from error
            stack.pop_all()
            return file, False
        if taken and os.fstat(file.fileno()).st_ino == _inode(path):
            stack.pop_all()
            return file, True
    if taken:  # the file was replaced while it was being opened
        return _claimed(path, force=force, command=command)
    if not force or _lives(_holder(path)):
        raise StudyLockedError(_held_message(path, command))
    return _replaced(path), True


def _take(file: TextIO) -> bool:
    """Whether the lock is ours now. OSError where there are no locks."""
    for look in range(LOOKS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if look < LOOKS - 1:
                time.sleep(SECONDS_BETWEEN_LOOKS)
    return False


def _replaced(path: Path) -> TextIO:
    """A new file in the place of `path`, locked before it is there."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(beside, "a+", encoding="utf-8"))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(beside, path)
        stack.pop_all()
        return file


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _holder(path: Path) -> Holder | None:
    """Who is written down in the file; None if nobody is."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return Holder(int(record["pid"]), str(record["host"]), str(record["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lives(holder: Holder | None) -> bool:
    """Whether it certainly does."""
    return holder is not None and holder.is_here and not holder.is_gone


def _held_message(path: Path, command: str) -> str:
    holder = _holder(path)
    held = f"a study has one driver at a time; {path.parent} is held by {holder or 'another process'}"
    if holder is not None and holder.is_gone:
        gone = f"{held}, which has ended: what it started and left behind holds on; end that"
        return f"{gone}, or {command}" if command else gone
    waiting = f"{held}; wait for it or stop it"
    if command and holder is not None and not holder.is_here:
        return f"{waiting}; if that machine is gone, {command}"
    return waiting


def _unlockable_message(path: Path, error: OSError, command: str) -> str:
    refused = (
        f"{path.parent} must lie on a file system with flock; got {errno.errorcode.get(error.errno or 0)}; "
        "move the study to a local disk"
    )
    return f"{refused}, or, where no other driver runs, {command}" if command else refused
