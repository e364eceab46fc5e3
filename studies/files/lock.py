"""One driver a study: an advisory lock that the kernel releases when its holder dies."""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import socket
from collections.abc import Generator
from pathlib import Path

from archsearch.errors import StudyError, StudyLockedError
from archsearch.studies.files.records import naming


@contextlib.contextmanager
def driver_lock(path: Path) -> Generator[None]:
    """Hold `path` for the length of the block; StudyLockedError names the driver that already does.

    The file stays when the lock is given back: only the lock on it says that a driver is alive.
    """
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise StudyLockedError(_held_message(path, file.read())) from None
        except OSError as error:
            raise StudyError(
                f"{path.parent} must lie on a file system with flock; got {errno.errorcode.get(error.errno or 0)}; "
                "move the study to a local disk"
            ) from error
        file.truncate(0)
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with naming(path):
            json.dump({"pid": os.getpid(), "host": socket.gethostname(), "started": started}, file)
            file.flush()
        yield


def is_held(path: Path) -> bool:
    """Whether a driver holds the lock now."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _held_message(path: Path, text: str) -> str:
    try:
        holder = json.loads(text)
        who = f"process {holder['pid']} on {holder['host']} since {holder['started']}"
    except (ValueError, KeyError, TypeError):
        who = "another process"
    return f"a study has one driver at a time; {path.parent} is held by {who}; wait for it or stop it"
