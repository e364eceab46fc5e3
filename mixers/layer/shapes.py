"""Channels as heads, heads as channels, and parts of either."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def as_heads(x: Tensor, dim: int) -> Tensor:
    """[..., n * dim] -> [..., n, dim]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // dim, dim)


def as_channels(x: Tensor) -> Tensor:
    """[..., n, dim] -> [..., n * dim]."""
    return x.flatten(-2)


def parted(x: Tensor, sizes: int | Sequence[int], dim: int = -1) -> tuple[Tensor, ...]:
    """Neighbouring parts of these sizes along `dim`; one number is the size of all."""
    return torch.split(x, sizes if isinstance(sizes, int) else list(sizes), dim)
