"""Durable files: whole or absent, line by line, readable by people.

A file is written beside its place, flushed, and moved there; a line counts once its newline is on disk. What a reader
sees is therefore always something that was meant, whenever the writer died.
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

from archsearch.errors import StudyError

Record = Mapping[str, object]


def _no_watch(path: Path) -> None:
    """Let every write pass."""


watch: Callable[[Path], None] = _no_watch
"""Called with the path before every durable write of this process; tests put a fault here."""


def write_json(path: Path, record: Record, *, durable: bool = True) -> None:
    """Put `record` at `path` as one JSON object, whole or not at all; on disk when this returns if `durable`."""
    write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n", durable=durable)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Put `text` at `path`, whole or not at all; on disk when this returns if `durable`."""
    watch(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        error.filename = str(path)
        raise
    if durable:
        _sync_directory(path.parent)


@contextlib.contextmanager
def naming(path: Path) -> Generator[None]:
    """A block that writes to `path`, which an OSError of it names: a full disk says no file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def append_json(path: Path, record: Record) -> None:
    """Add `record` as one line; it is on disk when this returns. A new file's name is made durable too."""
    watch(path)
    new = not path.exists()
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    with naming(path), open(path, "ab", buffering=0) as file:
        whole = file.tell()
        try:
            while line:
                line = line[file.write(line) :]
        except OSError:
            file.truncate(whole)  # half a line would spoil the next one, which another process may write
            raise
        os.fsync(file.fileno())
    if new:
        _sync_directory(path.parent)


class DamagedError(StudyError, ValueError):
    """A file that holds something else than was written."""


def read_json(path: Path) -> dict[str, object] | None:
    """The object at `path`; None if there is no such file. DamagedError if the file holds anything else."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise _damaged(path, "is no text") from error
    return _object(text, path, "it")


def read_lines(path: Path) -> list[dict[str, object]]:
    """The complete lines of `path`, one object each; none if there is no such file. A torn last line is left out.

    DamagedError for a complete line that is no object.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = data[: data.rfind(b"\n") + 1].decode(errors="replace").split("\n")
    return [_object(line, path, f"line {number}") for number, line in enumerate(lines, start=1) if line.strip()]


@contextlib.contextmanager
def read_as_written(path: Path, what: str = "one") -> Generator[None]:
    """A block that takes apart `what` was read from `path`; DamagedError where something that was written is missing,
    or is of another kind.
    """
    try:
        yield
    except DamagedError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, AssertionError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise _damaged(path, f"{what} lacks what was written ({said})") from error


Kind: TypeAlias = "type | tuple[type, ...] | Sequence[Kind] | Mapping[str, Kind]"
"""What a field holds: one of some types, a list of at least one of a kind, or a record of fields."""

Kinds: TypeAlias = Mapping[str, Kind]
"""The fields of a record and what each holds; the field `EACH` stands for every one that the record has."""

EACH = "*"
NUMBER = (int, float)
NONE = type(None)
VALUES: Kinds = {EACH: NUMBER}


def check_kinds(record: object, kinds: Kinds, place: str = "", *, partly: bool = False) -> None:
    """Whether a record has these fields, or partly: of another kind none that it has; numbers are finite.

    place: where it stands in its file, with a dot behind it. ValueError that says which field is wrong.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"{place.rstrip('.')} {_shortened(record)}")
    held = cast(Mapping[str, object], record)
    each = dict.fromkeys(held, kinds[EACH]) if EACH in kinds else {}
    for name, kind in {**each, **{name: kind for name, kind in kinds.items() if name != EACH}}.items():
        if name in held:
            _check_kind(held[name], kind, f"{place}{name}", partly=partly)
        elif not partly:
            raise ValueError(f"no {place}{name}")


def _check_kind(value: object, kind: Kind, place: str, *, partly: bool) -> None:
    """Whether a field holds what it should."""
    if isinstance(kind, Mapping):
        check_kinds(value, kind, f"{place}.", partly=partly)
    elif isinstance(kind, list) and (items := _items(value)):
        for number, item in enumerate(items):
            _check_kind(item, kind[0], f"{place}[{number}]", partly=partly)
    elif isinstance(kind, list) or not _is_of(value, cast("type | tuple[type, ...]", kind)):
        raise ValueError(f"{place} {_shortened(value)}")


def _items(value: object) -> list[object]:
    return cast(list[object], value) if isinstance(value, list) else []


def _is_of(value: object, kind: type | tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) and not (isinstance(value, float) and not math.isfinite(value))


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _object(text: str, path: Path, place: str) -> dict[str, object]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"{place} is no JSON") from error
    if not isinstance(record, dict):
        raise _damaged(path, f"{place} is a {type(record).__name__}")
    return cast(dict[str, object], record)


def _damaged(path: Path, what: str) -> DamagedError:
    return DamagedError(f"{path} must hold JSON objects; {what}: restore it from a copy of the study")


def cut_torn_tail(path: Path) -> bool:
    """Cut `path` back to its last complete line, keeping the whole file as `<name>.torn`; True if something was cut.

    The caller must be the only writer.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) == len(data):
        return False
    path.with_name(path.name + ".torn").write_bytes(data)
    os.truncate(path, len(whole))
    with open(path, "ab") as file:
        os.fsync(file.fileno())
    return True


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
