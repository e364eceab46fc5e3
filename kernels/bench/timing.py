"""How long a call takes, what it allocates and what it launches: medians, on the device's own clock."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import Any, cast

import torch

from archsearch.errors import described

SECONDS = 0.6
"""What the repeats of one measurement may take together, first calls apart."""
REPEATS = (5, 200)
"""The fewest and the most where there is no CUDA device."""
OVERHEAD = frozenset(
    (
        "Activity Buffer Request",
        "Buffer Flush",
        "Command Buffer Full",
        "Instrumentation",
        "Lazy Function Loading",
        "Resource",
        "Runtime Triggered Module Loading",
    )
)
"""What the profiler notes of itself on the device's lane."""


def first_seconds(call: Callable[[], object], device: torch.device) -> float:
    """One call from start to finish: with cold caches, what compiling costs."""
    return _wall(call, device)


def median_seconds(call: Callable[[], object], device: torch.device) -> float:
    """The median of repeated calls after some that warm up.

    On CUDA by events, the L2 cache flushed before each call as `triton.testing.do_bench` does it; a call that the host
    is slow to launch takes as long as the host.
    """
    if device.type == "cuda":
        return _do_bench(call) / 1000
    once = _wall(call, device)
    least, most = REPEATS
    repeats = min(most, max(least, int(SECONDS / max(once, 1e-6))))
    return median(_wall(call, device) for _ in range(repeats))


def graph_seconds(call: Callable[[], object], device: torch.device) -> float | str:
    """The median of replays of the call as a CUDA graph, without launch costs; or why there is none."""
    if device.type != "cuda":
        return "graphs need a CUDA device"
    graph = torch.cuda.CUDAGraph()
    try:
        _on_a_side_stream(call, device)
        with torch.cuda.graph(graph):
            call()
    except Exception as fault:  # a foreign call may raise anything where it cannot be captured
        return described(fault)
    return median_seconds(graph.replay, device)


def launches(call: Callable[[], object], device: torch.device) -> int | None:
    """Kernels, copies and fills that one call puts on a CUDA device; None where the profiler sees none."""
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        call()
        torch.cuda.synchronize(device)
    events = cast("list[Any]", seen.events() or [])
    seen_there = sum(str(event.device_type).endswith("CUDA") and event.name not in OVERHEAD for event in events)
    return seen_there or None


def peak_bytes(call: Callable[[], object], device: torch.device) -> int | None:
    """The most that a call allocates at once, results counted, through torch's allocator on a CUDA device."""
    if device.type != "cuda":
        return None
    gc.collect()  # what waits to be collected may go during the call, and would be missing from its peak
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def give_back() -> None:
    """Hand memory that nothing uses back to the device, for a process beside this one."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@cache
def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second of a large copy on a CUDA device, those read and those written counted."""
    source = torch.empty(2**28, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    return 2 * source.numel() * source.element_size() / median_seconds(lambda: target.copy_(source), device)


def _do_bench(call: Callable[[], object]) -> float:
    """Milliseconds. Triton has no types: this is the one place that knows."""
    from triton.testing import do_bench  # pyright: ignore[reportUnknownVariableType]

    return cast("float", do_bench(call, warmup=50, rep=int(SECONDS * 500), return_mode="median"))


def _on_a_side_stream(call: Callable[[], object], device: torch.device) -> None:
    """What capture asks for: the call has run on another stream than the usual one."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream(device).wait_stream(side)
    torch.cuda.synchronize(device)


def _wall(call: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
