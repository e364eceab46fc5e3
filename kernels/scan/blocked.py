"""The scans in PyTorch: about sqrt(T) blocks side by side, then what enters each of them. The backward is a scan too.

An export carries this file's text as it stands, so it needs torch alone.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor


def blocked_scan(g: Tensor, v: Tensor, state: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    """Every h = exp(g) h + v [B, T, C] from `state` [B or N, C] on, and the last one of each sequence."""
    a = g.exp()
    if cu_seqlens is None:
        h = recurrence(a, v, state)
        return h, (h[:, -1] if h.shape[1] else state)
    starts, ends, filled = cu_seqlens[:-1], cu_seqlens[1:], (cu_seqlens.diff() > 0)[:, None]
    if g.shape[1] == 0:
        return v, state
    places = torch.arange(g.shape[1], device=g.device)
    sequence = torch.searchsorted(ends.contiguous(), places, right=True)
    first = (places == starts[sequence])[:, None]
    v = v + torch.where(first, a[0] * state[sequence], 0.0)
    h = recurrence(torch.where(first, 0.0, a), v, torch.zeros_like(state[:1]))
    return h, torch.where(filled, h[0, (ends - 1).clamp(min=0)], state)


def blocked_selective_scan(
    operands: tuple[Tensor, ...], state: Tensor, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Of q, k, v, dt, rates every o = h q of h = exp(dt rates) h + dt v k^T, [B, T, C]; the last h [B or N, C, N]."""
    q, k, v, dt, rates = operands
    g, write = dt[..., None] * rates, (dt * v)[..., None] * k[:, :, None]
    h, last = blocked_scan(g.flatten(2), write.flatten(2), state.flatten(1), cu_seqlens)
    return (h.view(g.shape) * q[:, :, None]).sum(-1), last.view(state.shape)


def recurrence(a: Tensor, b: Tensor, state: Tensor) -> Tensor:
    """Every h_t = a_t h_(t-1) + b_t of a, b [B, T, C] and h_0 [B, C]."""
    return cast(Tensor, Recurrence.apply(a, b, state))


class Recurrence(torch.autograd.Function):
    """The same as a function of autograd."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, state: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Every h [B, T, C]."""
        h = _all_states(a, b, state)
        ctx.save_for_backward(a, h, state)
        return h

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_h: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The same recurrence from the last token to the first: d_t = dh_t + a_(t+1) d_(t+1)."""
        a, h, state = ctx.saved_tensors
        if not a.shape[1]:
            return torch.zeros_like(a), torch.zeros_like(a), torch.zeros_like(state)
        later = torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], 1)
        d = _all_states(later.flip(1), d_h.flip(1), torch.zeros_like(state)).flip(1)
        before = torch.cat([state[:, None], h[:, :-1]], 1)
        return d * before, d, a[:, 0] * d[:, 0]


def _all_states(a: Tensor, b: Tensor, state: Tensor) -> Tensor:
    """Inside all blocks at once, then from block to block."""
    batch, tokens, channels = b.shape
    size = max(1, math.isqrt(tokens))
    count = -(-tokens // size)
    kept, made = (x.new_zeros(batch, count * size, channels) for x in (a, b))
    kept[:, :tokens], made[:, :tokens] = a, b
    kept, made = kept.view(batch, count, size, channels), made.view(batch, count, size, channels)
    for t in range(1, size):
        made[:, :, t] += kept[:, :, t] * made[:, :, t - 1]
        kept[:, :, t] *= kept[:, :, t - 1]
    for n in range(count):
        made[:, n] += kept[:, n] * state[:, None]
        state = made[:, n, -1]
    return made.view(batch, count * size, channels)[:, :tokens]
