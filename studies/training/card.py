"""A device that processes of one machine share: many train on it at a time, one measures on it alone.

Two files in the machine's temporary directory, locked by the kernel, which lets go when a process dies. Who wants to be
alone holds the gate, so that nobody begins to train, and waits until those that do are done.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import torch


@contextlib.contextmanager
def training_on(device: torch.device) -> Generator[None]:
    """Train inside, beside others; waits while one measures."""
    gate, card = _files(device)
    with contextlib.ExitStack() as held:
        with _locked(gate, fcntl.LOCK_SH):
            held.enter_context(_locked(card, fcntl.LOCK_SH))
        yield


@contextlib.contextmanager
def alone_on(device: torch.device) -> Generator[None]:
    """Measure inside, when nobody else is inside `training_on` of the device."""
    gate, card = _files(device)
    with _locked(gate, fcntl.LOCK_EX), _locked(card, fcntl.LOCK_EX):
        yield


def _files(device: torch.device) -> tuple[Path, Path]:
    name = str(cast(Any, torch.cuda.get_device_properties(device)).uuid) if device.type == "cuda" else device.type
    here = Path(tempfile.gettempdir())
    return here / f"archsearch-{os.getuid()}-{name}.gate", here / f"archsearch-{os.getuid()}-{name}.card"


@contextlib.contextmanager
def _locked(path: Path, kind: int) -> Generator[None]:
    with open(path, "a", encoding="utf-8") as file:
        fcntl.flock(file, kind)
        yield
