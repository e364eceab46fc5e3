"""Kernels of passes made ready before any is launched, all at once: compilers and loaders run outside Python's lock."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any, cast

import torch
import triton

from archsearch.kernels.triton.program import Program, arguments_of


def prepare(programs: Iterable[Program], device: torch.device) -> None:
    """Compile what these passes launch, or find it in Triton's cache, and load it on the device.

    Nothing where kernels are interpreted, or where somebody else collects what is to be compiled.
    """
    launches = [launch for program in programs for launch in _launches(program)]
    if not launches or cast(Any, triton).runtime._async_compile.active_mode.get() is not None:
        return
    with ThreadPoolExecutor(len(launches)) as threads:
        with triton.AsyncCompileMode(threads):
            found = [function.run(grid=grid, warmup=True, **arguments) for function, grid, arguments in launches]
        kernels = [kernel.result() if hasattr(kernel, "result") else kernel for kernel in found]
        list(threads.map(_load, kernels, repeat(device)))


def _load(kernel: Any, device: torch.device) -> None:
    with torch.cuda.device(device):
        _ = kernel.run  # Triton loads a kernel, and builds what launches it, when this is first asked for


def _launches(program: Program) -> list[tuple[Any, tuple[int, int, int], dict[str, Any]]]:
    """Kernel, grid and arguments of every launch that is to come, with tensors that hold nothing."""
    if program.prepared:
        return []
    program.prepared = True
    buffers = [*program.given, *(buffer for memory in program.memories for buffer in memory.buffers)]
    tensors: dict[str, Any] = {
        buffer.name: torch.empty(buffer.shape, dtype=buffer.dtype, device="meta") for buffer in buffers
    }
    tensors["scale"] = 1.0
    found: list[tuple[Any, tuple[int, int, int], dict[str, Any]]] = []
    for step in program.steps:
        function: Any = getattr(program.launchers[step.kernel].module, step.kernel)
        if isinstance(function, cast(Any, triton).JITFunction):
            found.append((function, step.grid, arguments_of(step, tensors)))
    return found
