"""How long a call takes: the median of many, on the device's own clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from statistics import median

import torch

SECONDS = 0.6
"""What the repeats of one measurement may take together, first calls apart."""
REPEATS = (5, 200)
"""The fewest and the most."""


def first_seconds(call: Callable[[], object], device: torch.device) -> float:
    """One call from start to finish: with cold caches, what compiling costs."""
    return _wall(call, device)


def median_seconds(call: Callable[[], object], device: torch.device) -> float:
    """The median of repeated calls after one that warms up; on CUDA by events, so waiting for the host counts too."""
    once = _wall(call, device)
    least, most = REPEATS
    repeats = min(most, max(least, int(SECONDS / max(once, 1e-6))))
    measure = _event if device.type == "cuda" else _wall
    return median(measure(call, device) for _ in range(repeats))


@cache
def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second of a large copy on a CUDA device, those read and those written counted."""
    source = torch.empty(2**28, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    return 2 * source.numel() * source.element_size() / median_seconds(lambda: target.copy_(source), device)


def _wall(call: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - start


def _event(call: Callable[[], object], device: torch.device) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end) / 1000


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
