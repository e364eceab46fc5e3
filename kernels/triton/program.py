"""A pass over buffers as one list of launches: first by Triton's own way, which compiles, then bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from archsearch.kernels.triton.launcher import ALIGNED, Bound, Frame, Launcher, direct, hooks
from archsearch.kernels.triton.steps import Buffer, Memory, Of, Step, Tile


@dataclass(slots=True)
class Program:
    """The launches of a pass. A call brings `given`, in this order, an operand first, then `memories`.

    What is bound is bound for dtypes: `given` says those that a call is expected to bring.
    """

    launchers: Mapping[str, Launcher]
    steps: tuple[Step, ...]
    given: tuple[Buffer, ...]
    memories: tuple[Memory, ...]
    prepared: bool = False
    bound: dict[tuple[torch.dtype | None, ...], tuple[Frame, list[Bound]]] = field(
        default_factory=dict[tuple[torch.dtype | None, ...], tuple[Frame, list[Bound]]]
    )

    def __call__(self, scale: float, tensors: Sequence[Tensor | None], rooms: Sequence[Tensor]) -> None:
        """Launch everything: `tensors` are the given ones, None for what a kernel is not to touch."""
        if not self.steps:
            return
        values: list[Any] = [scale, *[None if tensor is None else tensor.data_ptr() for tensor in tensors]]
        key = tuple([None if tensor is None else tensor.dtype for tensor in tensors])
        for memory, room in zip(self.memories, rooms, strict=True):
            address = room.data_ptr()
            values += [address + offset for offset in memory.offsets]
        aligned = all(address is None or address % ALIGNED == 0 for address in values[1:])
        known = self.bound.get(key) if aligned else None
        if known is None:
            self._by_name(key, scale, tensors, rooms, bind=aligned)
            return
        frame, launches = known
        frame.fill(values)
        enter, leave = hooks()
        stream = cast(Any, triton).runtime.driver.active.get_current_stream(cast(Tensor, tensors[0]).get_device())
        for launch in launches:
            launch(values, stream, enter, leave)

    def _by_name(
        self,
        key: tuple[torch.dtype | None, ...],
        scale: float,
        tensors: Sequence[Tensor | None],
        rooms: Sequence[Tensor],
        *,
        bind: bool,
    ) -> None:
        """The launches as Triton makes them, which compiles what it has not seen; bound afterwards."""
        found = self._named(scale, tensors, rooms)
        kernels = [
            self.launchers[step.kernel](step.kernel, step.grid, arguments_of(step, found)) for step in self.steps
        ]
        if bind and all(kernel is not None and direct(kernel.run) is not None for kernel in kernels):
            self.bound[key] = self._bind(key, kernels)

    def _named(self, scale: float, tensors: Sequence[Tensor | None], rooms: Sequence[Tensor]) -> dict[str, Any]:
        found: dict[str, Any] = {"scale": scale}
        found |= {buffer.name: tensor for buffer, tensor in zip(self.given, tensors, strict=True)}
        for memory, room in zip(self.memories, rooms, strict=True):
            found |= memory.views(room)
        return found

    def _bind(self, key: tuple[torch.dtype | None, ...], kernels: Sequence[Any]) -> tuple[Frame, list[Bound]]:
        buffers = [buffer for memory in self.memories for buffer in memory.buffers]
        names = ["scale", *(buffer.name for buffer in (*self.given, *buffers))]
        frame = Frame(names, [None, *key, *(buffer.dtype for buffer in buffers)])
        launches: list[Bound] = []
        for step, kernel in zip(self.steps, kernels, strict=True):
            parameters = getattr(self.launchers[step.kernel].module, step.kernel).arg_names
            launches.append(Bound(kernel, step, parameters, frame))
        for launch in launches:
            launch.settle(frame)
        return frame, launches


def arguments_of(step: Step, found: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a launch, by name, with what a call brings in them."""
    return {name: _argument(argument, found) for name, argument in step.arguments.items()}


def _argument(argument: object, found: Mapping[str, Any]) -> object:
    if isinstance(argument, Of):
        return found[argument.name]
    if isinstance(argument, Tile):
        tensor = found[argument.name].view(argument.shape)
        return TensorDescriptor(tensor, list(argument.shape), argument.strides, list(argument.block))
    return argument
