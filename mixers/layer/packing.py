"""Where tokens stand: positions inside their sequence and the sequence itself, whole or packed by cu_seqlens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from archsearch.errors import OperandError


@dataclass(frozen=True, slots=True)
class Packing:
    """Sequences packed along T with B = 1: `offsets` [N + 1], `sequence` [T] and `place` [T] of each token."""

    offsets: Tensor
    sequence: Tensor
    place: Tensor

    @property
    def sequences(self) -> int:
        """N."""
        return len(self.offsets) - 1


def packing_of(x: Tensor, cu_seqlens: Tensor | None) -> Packing | None:
    """The packing of `x` [1, T, width], or None without offsets.

    Errors: OperandError for a batch, or offsets that are no [N + 1] integers from 0 to T (on a CPU; elsewhere looking
    would wait for the device).
    """
    if cu_seqlens is None:
        return None
    if x.shape[0] != 1:
        raise OperandError(
            f"cu_seqlens packs sequences along T with B = 1; got B = {x.shape[0]}. Reshape to [1, B * T, ...]"
        )
    if not isinstance(cu_seqlens, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OperandError(
            f"cu_seqlens must be a tensor; got {type(cu_seqlens).__name__}. Make it one with torch.tensor"
        )
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise OperandError(
            f"cu_seqlens must be [N + 1] int32 or int64 offsets; got {cu_seqlens.dtype} {list(cu_seqlens.shape)}"
        )
    if cu_seqlens.device.type == "cpu":
        _check_rise(cu_seqlens, x.shape[1])
    offsets = cu_seqlens.long()
    places = torch.arange(x.shape[1], device=x.device)
    sequence = torch.searchsorted(offsets[1:].contiguous(), places, right=True)
    return Packing(offsets, sequence, places - offsets[sequence])


def _check_rise(cu_seqlens: Tensor, tokens: int) -> None:
    offsets = cast("list[int]", cu_seqlens.tolist())
    if offsets[0] != 0 or offsets[-1] != tokens or offsets != sorted(offsets):
        raise OperandError(f"cu_seqlens must rise from 0 to T = {tokens}; got {offsets}")
