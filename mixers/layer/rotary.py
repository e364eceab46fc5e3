"""Rotary positions (2104.09864): pairs of channels (i, i + K/2) turn by position * base^(-2i/K)."""

from __future__ import annotations

import torch
from torch import Tensor

from archsearch.kernels.entering import exact
from archsearch.mixers.layer.shapes import parted

BASE = 10_000.0


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """`x` [B, T, H, K], K even, turned by `positions` [B or 1, T]. Computed in float32, returned in the type of `x`."""
    half = x.shape[-1] // 2
    wide = exact(x)
    steps = torch.arange(half, device=x.device, dtype=wide.dtype)
    angles = positions[..., None, None].to(wide.dtype) * BASE ** (-steps / half)
    sine, cosine = angles.sin(), angles.cos()
    first, second = parted(wide, half)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)
