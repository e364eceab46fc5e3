"""A training step as a CUDA graph: what a small model's step takes is the host's time to launch it, and a graph is one
launch.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from archsearch.errors import ConfigError

T = TypeVar("T")

StepFunction = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Tokens [B, T], labelled places and answers [M] to two results on the device, without waiting for it."""
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


class Replay(Generic[T]):
    """Calls a change without arguments: eagerly at first, then as a graph, whose memory stays its own.

    All that it reads and writes must stay where it is: whoever puts other tensors in their place starts anew with
    another `Replay`. What it returns lies in the same place after each replay. Draws of the device's generator go on as
    in eager calls.
    """

    def __init__(self, change: Callable[[], T], device: torch.device) -> None:
        """`change` changes tensors of `device` in place and reads nothing else that changes."""
        self._change, self._device = change, device
        self._stream = torch.cuda.Stream(device)
        self._eager = 0
        self._captured: tuple[torch.cuda.CUDAGraph, T] | None = None

    def __call__(self) -> T:
        """One change."""
        if self._eager < EAGER:
            self._eager += 1
            return self._aside()
        if self._captured is None:
            self._captured = self._capture()
        graph, found = self._captured
        graph.replay()
        return found

    @property
    def is_captured(self) -> bool:
        """Whether calls are replayed by now."""
        return self._captured is not None

    def _aside(self) -> T:
        """On another stream than the usual one, as capture asks of what runs before it."""
        usual = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(usual)
        with torch.cuda.stream(self._stream):
            found = self._change()
        usual.wait_stream(self._stream)
        return found

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, T]:
        """Nothing runs yet."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device), torch.cuda.graph(graph, stream=self._stream):
            found = self._change()
        return graph, found


class Replayed:
    """Calls a step on batches of one shape as a `Replay`."""

    def __init__(self, step: StepFunction, device: torch.device) -> None:
        """`step` changes tensors of `device` in place and reads nothing else that changes but its batch."""
        self._step, self._device = step, device
        self._given: tuple[Tensor, Tensor, Tensor] | None = None
        self._replay = Replay(self._change, device)

    def __call__(self, tokens: Tensor, places: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """The results of one step for a batch on any device."""
        batch = (tokens, places, answers)
        if self._given is None:
            room = [torch.empty_like(tensor, device=self._device) for tensor in batch]
            self._given = room[0], room[1], room[2]
        for kept, given in zip(self._given, batch, strict=True):
            kept.copy_(given, non_blocking=True)
        first, second = self._replay()
        return first.clone(), second.clone()

    @property
    def is_captured(self) -> bool:
        """Whether steps are replayed by now."""
        return self._replay.is_captured

    def _change(self) -> tuple[Tensor, Tensor]:
        assert self._given is not None
        return self._step(*self._given)
