"""Kernels of passes made ready before any is launched: compiled all at once, since compilers run outside Python's lock,
and loaded one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import torch
import triton

from archsearch.kernels.triton.program import Program, arguments_of


def prepare(programs: Iterable[Program], device: torch.device) -> None:
    """Compile what these passes launch, or find it in Triton's cache, and load it on the device.

    Nothing where kernels are interpreted, or where somebody else collects what is to be compiled. One thread loads:
    what launches a kernel is, up to Triton 3.6, an extension module of a name that all share, and Python fills the
    module last loaded under a name with what it loads again, so that two at once may change places.
    """
    launches = [launch for program in programs for launch in _launches(program)]
    if not launches or cast(Any, triton).runtime._async_compile.active_mode.get() is not None:
        return
    with ThreadPoolExecutor(len(launches)) as threads, triton.AsyncCompileMode(threads):
        found = [function.run(grid=grid, warmup=True, **arguments) for function, grid, arguments in launches]
        for kernel in found:
            _load(kernel.result() if hasattr(kernel, "result") else kernel, device)


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
