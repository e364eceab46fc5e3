"""Durable files: whole or absent, line by line, readable by people.

A file is written beside its place, flushed, and moved there; a line counts once its newline is on disk. What a reader
sees is therefore always something that was meant, whenever the writer died.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

Record = Mapping[str, object]


def _no_watch(path: Path) -> None:
    """Let every write pass."""


watch: Callable[[Path], None] = _no_watch
"""Called with the path before every durable write of this process; tests put a fault here."""


def write_json(path: Path, record: Record) -> None:
    """Put `record` at `path` as one JSON object, whole or not at all, and on disk when this returns."""
    write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Put `text` at `path`, whole or not at all, and on disk when this returns."""
    watch(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    _sync_directory(path.parent)


def append_json(path: Path, record: Record) -> None:
    """Add `record` as one line; it is on disk when this returns. A new file's name is made durable too."""
    watch(path)
    new = not path.exists()
    with open(path, "ab") as file:
        file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if new:
        _sync_directory(path.parent)


def read_json(path: Path) -> dict[str, object] | None:
    """The object at `path`; None if there is no such file. ValueError if the file holds anything else."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    record = json.loads(text)
    if not isinstance(record, dict):
        raise ValueError(f"{path} must hold one JSON object; got {type(record).__name__}")
    return {str(key): value for key, value in record.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]


def read_lines(path: Path) -> list[dict[str, object]]:
    """The complete lines of `path`, one object each; none if there is no such file. A torn last line is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines() if line.strip()]


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
