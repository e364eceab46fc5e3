"""Checkpoints of a trial: safetensors for the tensors, JSON for the rest, written so that there is always a whole one.

    checkpoint/
      65536.safetensors    every tensor, by path
      65536.json           the rest, and the SHA-256 of the tensors' file
      latest.json          {"tokens": 65536}, moved into place last of all

A file is written beside its place, flushed, and moved there. The newest two checkpoints are kept; that of a trial that
is over holds no moments of an optimiser.
"""

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from archsearch.errors import CheckpointError
from archsearch.studies.files import records
from archsearch.studies.files.outcomes import FULL

FORMAT = "archsearch checkpoint 1"
KEPT = 2


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """tokens: of the whole trial. tensors: by path, on the CPU. record: plain data, as it was given."""

    tokens: int
    tensors: Mapping[str, Tensor]
    record: Mapping[str, Any]


def write_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint and make it the latest. On a full disk CheckpointError; the one before it stays the latest."""
    data = save(dict(checkpoint.tensors))
    record = {
        "format": FORMAT,
        "tokens": checkpoint.tokens,
        "sha256": hashlib.sha256(data).hexdigest(),
        "record": checkpoint.record,
    }
    directory.mkdir(parents=True, exist_ok=True)
    try:
        _write_bytes(_tensors_path(directory, checkpoint.tokens), data)
        records.write_json(_record_path(directory, checkpoint.tokens), record)
        records.write_json(directory / "latest.json", {"tokens": checkpoint.tokens})
    except OSError as error:
        _remove_unfinished(directory)
        raise _unwritten(directory, checkpoint.tokens, error) from error
    _remove_old(directory, checkpoint.tokens)


def read_checkpoint(directory: Path) -> Checkpoint | None:
    """The latest checkpoint, its checksum compared; None if none was written. CheckpointError for anything else."""
    latest = _object(directory / "latest.json")
    if latest is None:
        return None
    tokens = latest.get("tokens")
    if not isinstance(tokens, int):
        raise CheckpointError(f"{directory / 'latest.json'} must hold a number of tokens; it is no checkpoint's")
    path = _record_path(directory, tokens)
    record = _object(path)
    if record is None:
        raise CheckpointError(f"{directory / 'latest.json'} names {path.name}; there is no such file: copy it back")
    if record.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no checkpoint: it must have format {FORMAT!r}, got {record.get('format')!r}")
    tensors = _read_tensors(_tensors_path(directory, tokens), cast(str, record.get("sha256", "")))
    return Checkpoint(tokens, tensors, cast(Mapping[str, Any], record["record"]))


def _read_tensors(path: Path, checksum: str) -> dict[str, Tensor]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != checksum:
        raise CheckpointError(f"{path} is damaged: its SHA-256 must be {checksum[:12]}..., as its .json says")
    try:
        return load(data)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is no safetensors file: {error}") from error


def _object(path: Path) -> dict[str, object] | None:
    try:
        return records.read_json(path)
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} is no checkpoint's: it must hold one JSON object") from error


def _write_bytes(path: Path, data: bytes) -> None:
    records.watch(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with records.naming(path), open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _unwritten(directory: Path, tokens: int, error: OSError) -> CheckpointError:
    full = error.errno in FULL
    what = "the disk is full" if full else (error.strerror or str(error))
    advice = "free some space and run the same command again" if full else "run the same command again"
    return CheckpointError(
        f"no checkpoint of {tokens} tokens in {directory}: {what}; what was written before is whole: {advice}"
    )


def _remove_old(directory: Path, tokens: int) -> None:
    """Keep the newest and the one before it; what a killed process left unfinished goes too."""
    present = {int(path.stem) for path in directory.glob("*.safetensors") if path.stem.isdigit()}
    kept = set(sorted(present - {tokens})[-(KEPT - 1) :]) | {tokens}
    for old in present - kept:
        _record_path(directory, old).unlink(missing_ok=True)
        _tensors_path(directory, old).unlink(missing_ok=True)
    _remove_unfinished(directory)


def _remove_unfinished(directory: Path) -> None:
    for path in directory.glob(".*.json.*"):
        path.unlink(missing_ok=True)
    for path in directory.glob(".*.safetensors.*"):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _tensors_path(directory: Path, tokens: int) -> Path:
    return directory / f"{tokens}.safetensors"


def _record_path(directory: Path, tokens: int) -> Path:
    return directory / f"{tokens}.json"
