"""Seeds derived from one number, and random states that belong to one run instead of the process."""

import contextlib
from collections.abc import Generator

import numpy as np
import torch
from torch import Tensor


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
