"""Where Optuna keeps a study: a journal in the study's directory, or a database that several studies and their readers
share.
"""

import contextlib
import json
import os
import re
import sqlite3
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.exceptions import OptunaError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileSymlinkLock
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import SQLAlchemyError

from archsearch.errors import StudyError, first_line
from archsearch.studies.files import records

JOURNAL = "journal"
"""The storage that is a file of the study's directory."""

SECONDS_TO_CONNECT = 10

FULL = "53100"
"""PostgreSQL's disk_full; https://www.postgresql.org/docs/current/errcodes-appendix.html"""


@dataclass(frozen=True, slots=True)
class Kept:
    """A storage, what puts on disk what was written to it, and what lets go of it."""

    storage: BaseStorage
    flush: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None


class _Journal(BaseJournalBackend):
    """Optuna's journal file, whose lines reach the disk when they are flushed: there are many a trial, and what a
    trial's own files say can be told again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = JournalFileBackend(str(path))
        self._lock = JournalFileSymlinkLock(str(path))

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """The records from a number on."""
        return self._reader.read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add lines; they outlive this process at once, and the machine once they are flushed."""
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        self._lock.acquire()
        try:
            with records.naming(self._path), open(self._path, "ab") as file:
                file.write(text.encode())
        finally:
            self._lock.release()

    def flush(self) -> None:
        """Put every line so far on disk."""
        with records.naming(self._path), open(self._path, "ab") as file:
            os.fsync(file.fileno())


def open_storage(url: str, journal: Path) -> Kept:
    """The storage of a study: `journal`, mended if a crash tore it, or begun; or the database that `url` names.

    The caller is the only writer. Errors: DamagedError if the journal holds something else; StudyError for a database
    that cannot be opened.
    """
    if url == JOURNAL:
        return _open_journal(journal)
    with _answering(url):
        _check_lasting(url)
        database = RDBStorage(url, engine_kwargs=_engine_options(url))
    return Kept(database, close=lambda: _let_go(database))


def check_storage(url: str) -> None:
    """Whether a study can be kept there, as far as can be told without writing. StudyError as `open_storage`."""
    if url == JOURNAL:
        return
    with _answering(url):
        _check_lasting(url)
        place = make_url(url)
        if place.get_backend_name() == "sqlite":
            _check_file(str(place.database))
            return
        engine = create_engine(place, **_engine_options(url))
        try:
            engine.connect().close()
        finally:
            engine.dispose()


def is_there(url: str) -> bool:
    """Whether a database may hold something: a file that does not exist holds nothing."""
    with _answering(url):
        place = make_url(url)
    return place.get_backend_name() != "sqlite" or Path(str(place.database).removeprefix("file:")).exists()


@contextlib.contextmanager
def _answering(url: str) -> Generator[None]:
    """A block in which a database is opened; StudyError for one that cannot be."""
    try:
        yield
    except (SQLAlchemyError, OptunaError, ImportError, ValueError, sqlite3.Error) as error:
        raise StudyError(
            f"storage must be journal or the URL of a database that answers; got {without_password(url)}: "
            f"{_reason(error)}; write it as sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
        ) from error


def _check_lasting(url: str) -> None:
    """Whether a database outlives the process that opened it. ValueError."""
    place = make_url(url)
    memory = "memory" in place.query.get("mode", "") or (place.database or ":memory:").endswith(":memory:")
    if place.get_backend_name() == "sqlite" and memory:
        raise ValueError("it lies in memory, and nothing could be resumed from it")


def _check_file(name: str) -> None:
    """Whether a file is a database or can become one. sqlite3.Error, ValueError."""
    path = Path(name.removeprefix("file:"))
    if not path.parent.is_dir():
        raise ValueError(f"there is no directory {path.parent}")
    if path.exists():
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("PRAGMA schema_version").fetchone()


def is_full(error: BaseException) -> bool:
    """Whether what a database says comes from a disk of its own that takes no more."""
    cause: BaseException | None = error
    while cause is not None:
        if getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL or getattr(cause, "sqlstate", None) == FULL:
            return True
        cause = cause.__cause__
    return False


def without_password(url: str) -> str:
    """A URL as it may be shown."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)


def _open_journal(path: Path) -> Kept:
    records.cut_torn_tail(path)
    for number, line in enumerate(records.read_lines(path), start=1):  # Optuna names neither the file nor the line
        with records.read_as_written(path, f"record {number}"):
            for key in ("op_code", "worker_id"):
                line[key]
    path.with_name(path.name + ".lock").unlink(missing_ok=True)
    backend = _Journal(path)
    with records.read_as_written(path):
        return Kept(JournalStorage(backend), backend.flush)


def _let_go(database: RDBStorage) -> None:
    """Close every connection."""
    database.remove_session()
    database.engine.dispose()


def _engine_options(url: str) -> dict[str, Any]:
    """A server that does not answer is told of soon."""
    return {"connect_args": {"connect_timeout": SECONDS_TO_CONNECT}} if url.startswith("postgresql") else {}


def _reason(error: Exception) -> str:
    """The first line of what the database or its driver says."""
    told = getattr(error, "orig", None) or error
    if isinstance(error, ImportError):
        return "its driver is not installed (pip install 'archsearch[postgresql]' for PostgreSQL)"
    return first_line(told).strip()
