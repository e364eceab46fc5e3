"""Seeds derived from one number, random states that belong to one run instead of the process, bits that repeat."""

import contextlib
import os
from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import deterministic as deterministic_module

deterministic: Any = deterministic_module  # its one attribute is set where no type checker sees it

CUBLAS_WORKSPACE = ":4096:8"
"""Eight buffers of 4 MiB: cuBLAS repeats its bits with a fixed number of them. torch takes as much on Hopper."""


def derive_seed(seed: int, purpose: int) -> int:
    """A seed for one purpose of a trial; different purposes are independent."""
    return int(np.random.SeedSequence((seed, purpose)).generate_state(1, np.uint64)[0] >> 1)


class Randomness:
    """The state of torch's generators of one run: dropout of one model never depends on what else the process draws."""

    def __init__(self, seed: int, device: torch.device) -> None:
        """Seed the generators of the CPU and of `device`."""
        self.device = device
        with torch.random.fork_rng(self._devices()):
            torch.manual_seed(seed)
            self.states = self._read()

    @contextlib.contextmanager
    def used(self) -> Generator[None, None, None]:
        """Draw from this run's generators inside; those of the process are as before afterwards."""
        with torch.random.fork_rng(self._devices()):
            torch.set_rng_state(self.states["cpu"])
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(self.states["cuda"], self.device)
            yield
            self.states = self._read()

    def _read(self) -> dict[str, Tensor]:
        """uint8 tensors on the CPU, by kind of device."""
        states = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states

    def _devices(self) -> list[torch.device]:
        return [self.device] if self.device.type == "cuda" else []


@contextlib.contextmanager
def repeatable(device: torch.device) -> Generator[None, None, None]:
    """Inside, equal steps on `device` give equal bits; a CPU with a fixed number of threads does that by itself.

    On CUDA torch takes the deterministic form of what else adds up in the order of its threads: gradients of
    convolutions and of attention. RuntimeError, from torch, for an operation without such a form. torch reads the
    workspace of cuBLAS once, at a process's first product on the GPU: in a process that multiplied there before
    without it, torch warns of what may not repeat instead.
    """
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = deterministic.fill_uninitialized_memory
    deterministic.fill_uninitialized_memory = False  # a help in finding faults, at the price of writing every buffer
    try:
        torch.use_deterministic_algorithms(True)
        if not products_repeat(device):
            torch.use_deterministic_algorithms(True, warn_only=True)
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        deterministic.fill_uninitialized_memory = filled


def products_repeat(device: torch.device) -> bool:
    """Whether torch takes the products of this process for repeatable, asked while it refuses all others."""
    one = torch.ones(1, 1, device=device)
    try:
        torch.mm(one, one)
    except RuntimeError as error:
        if "CUBLAS_WORKSPACE_CONFIG" not in str(error):
            raise
        return False
    return True
