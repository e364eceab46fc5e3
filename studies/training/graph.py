"""A training step as a CUDA graph: what a small model's step takes is the host's time to launch it, and a graph is one
launch.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from archsearch.errors import ConfigError

StepFunction = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Tokens and targets [B, T] on the device to two results on the device, without waiting for it."""
EAGER = 3
"""Calls before the capture: they compile kernels and make what lives on, the optimiser's moments among it."""


def check_graphs(device: torch.device, *, graphs: bool) -> None:
    """ConfigError for graphs on a device that has none."""
    if graphs and device.type != "cuda":
        raise ConfigError(f"graphs need a CUDA device; got {device}; leave graphs out")


def check_alone(processes: int) -> None:
    """ConfigError for graphs of a trial that has several processes."""
    if processes > 1:
        raise ConfigError("graphs need one process a trial; leave graphs out or give a trial one GPU")


class Captured(NamedTuple):
    """A graph, the tensors that it reads, and those that it writes."""

    graph: torch.cuda.CUDAGraph
    given: tuple[Tensor, Tensor]
    found: tuple[Tensor, Tensor]


class Replayed:
    """Calls a step on batches of one shape: eagerly at first, then as a graph, whose memory stays its own.

    Parameters, gradients and the optimiser's state must stay where they are: whoever puts others in their place starts
    anew with another `Replayed`. Draws of the device's generator go on as in eager calls.
    """

    def __init__(self, step: StepFunction, device: torch.device) -> None:
        """`step` changes tensors of `device` in place and reads nothing else that changes."""
        self.step = step
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.eager = 0
        self.captured: Captured | None = None

    def __call__(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The results of one step for a batch on any device."""
        if self.eager < EAGER:
            self.eager += 1
            return self._aside(tokens.to(self.device), targets.to(self.device))
        if self.captured is None:
            self.captured = self._capture(tokens.to(self.device), targets.to(self.device))
        for kept, given in zip(self.captured.given, (tokens, targets), strict=True):
            kept.copy_(given, non_blocking=True)
        self.captured.graph.replay()
        first, second = self.captured.found
        return first.clone(), second.clone()

    def _aside(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """On another stream than the usual one, as capture asks of what runs before it."""
        usual, side = torch.cuda.current_stream(self.device), self.stream
        side.wait_stream(usual)
        with torch.cuda.stream(side):
            found = self.step(tokens, targets)
        usual.wait_stream(side)
        return found

    def _capture(self, tokens: Tensor, targets: Tensor) -> Captured:
        """Nothing runs yet."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), torch.cuda.graph(graph, stream=self.stream):
            found = self.step(tokens, targets)
        return Captured(graph, (tokens, targets), found)
