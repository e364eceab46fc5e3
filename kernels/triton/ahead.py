"""Kernels of passes made ready before any is launched: compiled all at once, since compilers run outside Python's lock,
each looked through for what the assembler may have lost and loaded while others still compile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
import triton

from archsearch.errors import BackendError
from archsearch.kernels.triton import machine_code
from archsearch.kernels.triton.plan import SMALLEST
from archsearch.kernels.triton.program import Program, arguments_of
from archsearch.kernels.triton.steps import Step

LOOPING = ("gradients", "gradients_strong", "pairs")
"""Kernels that go through the values in a loop of their own."""


class Launch(NamedTuple):
    """A launch to come: the `place`-th of a program."""

    program: Program
    place: int

    @property
    def step(self) -> Step:
        """As the program has it now."""
        return self.program.steps[self.place]

    @property
    def function(self) -> Any:
        """The kernel's source."""
        return getattr(self.program.launchers[self.step.kernel].module, self.step.kernel)


def prepare(programs: Iterable[Program], device: torch.device) -> None:
    """Compile what these passes launch, or find it in Triton's cache, and load it on the device.

    Nothing where kernels are interpreted, or where somebody else collects what is to be compiled. A kernel whose
    machine code is not sound is compiled with smaller tiles, and launched so.

    Errors: BackendError for a kernel that no such change makes sound.
    """
    if cast(Any, triton).runtime._async_compile.active_mode.get() is not None:
        return
    fresh = [program for program in programs if not program.prepared]
    launches = [launch for program in fresh for launch in _launches(program)]
    while launches:
        launches = _unsound(launches, device)
        for launch in launches:
            _take_fewer_values(launch)
    for program in fresh:
        program.prepared = True


def _launches(program: Program) -> list[Launch]:
    """Every launch that is to come, of kernels that are compiled."""
    found = [Launch(program, place) for place in range(len(program.steps))]
    return [launch for launch in found if isinstance(launch.function, cast(Any, triton).JITFunction)]


def _unsound(launches: Sequence[Launch], device: torch.device) -> list[Launch]:
    """Compile these and load all that are sound; the launches whose kernels are not.

    The last launch of a backward takes longest to compile, so it begins first. For every kernel two threads: one that
    compiles it, one that waits for that and looks it through.
    """
    unsound: list[Launch] = []
    with ThreadPoolExecutor(2 * len(launches)) as threads, triton.AsyncCompileMode(threads):
        looking = {threads.submit(_sound, _compile(launch)): launch for launch in reversed(launches)}
        for looked in as_completed(looking):
            kernel = looked.result()
            if kernel is None:
                unsound.append(looking[looked])
            else:
                _load(kernel, device)
    return unsound


def _sound(compiling: Any) -> Any | None:
    """The kernel once it is compiled; None for one that is not sound."""
    kernel = compiling.result() if hasattr(compiling, "result") else compiling
    return kernel if machine_code.sound(kernel) else None


def _compile(launch: Launch) -> Any:
    """The kernel, or what will be it, for tensors that hold nothing."""
    program, step = launch.program, launch.step
    buffers = [*program.given, *(buffer for memory in program.memories for buffer in memory.buffers)]
    tensors: dict[str, Any] = {
        buffer.name: torch.empty(buffer.shape, dtype=buffer.dtype, device="meta") for buffer in buffers
    }
    return launch.function.run(grid=step.grid, warmup=True, **arguments_of(step, {**tensors, "scale": 1.0}))


def _take_fewer_values(launch: Launch) -> None:
    """Give the program the same launch with half as many values a turn of its loop, so that its tiles lie elsewhere."""
    step, steps = launch.step, launch.program.steps
    if step.kernel not in LOOPING or step.arguments["BV"] <= SMALLEST:
        raise _refusal(step)
    halved = replace(step, arguments={**step.arguments, "BV": step.arguments["BV"] // 2})
    launch.program.steps = (*steps[: launch.place], halved, *steps[launch.place + 1 :])


def _refusal(step: Step) -> BackendError:
    sizes = ", ".join(f"{name} = {step.arguments[name]}" for name in ("K", "V") if name in step.arguments)
    return BackendError(
        f"the machine code of kernel {step.kernel} at {sizes} must write every register before it reads it, "
        f"and find every tile where it lies; what Triton {triton.__version__} made does not, and would give wrong "
        "numbers. Take another head size or chunk_size, or backend='torch'"
    )


def _load(kernel: Any, device: torch.device) -> None:
    """One thread loads: what launches a kernel is, up to Triton 3.6, an extension module of a name that all share, and
    Python fills the module last loaded under a name with what it loads again, so that two at once may change places.
    """
    with torch.cuda.device(device):
        _ = kernel.run  # Triton loads a kernel, and builds what launches it, when this is first asked for
