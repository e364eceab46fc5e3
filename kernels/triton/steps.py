"""What a pass launches, worked out before any tensor is there: kernels, their arguments by name, room in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

Shape = tuple[int, ...]

LINE = 128
"""Bytes of a cache line, where every buffer in a memory begins."""


class Of(NamedTuple):
    """An argument that each call brings: a tensor, a buffer or a number by its name."""

    name: str


class Tile(NamedTuple):
    """A tensor descriptor over a contiguous tensor or buffer taken as `shape`, for blocks of `block`."""

    name: str
    shape: Shape
    block: Shape

    @property
    def strides(self) -> list[int]:
        """In elements."""
        return [math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))]


class Buffer(NamedTuple):
    """A tensor by name. `again`: the backward can compute it again."""

    name: str
    shape: Shape
    dtype: torch.dtype
    again: bool = False

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Memory:
    """Buffers in one allocation, each at its offset; `size` bytes."""

    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, buffers: tuple[Buffer, ...]) -> Memory:
        """One after another."""
        offsets: list[int] = []
        size = 0
        for buffer in buffers:
            offsets.append((size + LINE - 1) // LINE * LINE)
            size = offsets[-1] + buffer.size
        return cls(buffers, tuple(offsets), size)

    def new(self, device: torch.device) -> Tensor:
        """Room, as it comes."""
        return torch.empty(self.size, dtype=torch.uint8, device=device)

    def views(self, room: Tensor) -> dict[str, Tensor]:
        """The buffers as tensors."""
        found: dict[str, Tensor] = {}
        for buffer, offset in zip(self.buffers, self.offsets, strict=True):
            part = room[offset : offset + buffer.size]
            found[buffer.name] = part.view(buffer.dtype).view(buffer.shape)
        return found


@dataclass(frozen=True, slots=True)
class Step:
    """One launch: `arguments` by the kernel's names, num_warps, num_stages and maxnreg among them."""

    kernel: str
    grid: tuple[int, int, int]
    arguments: Mapping[str, Any]
