"""What the scans mean, one token after another. Differentiable by autograd; float64 where the inputs are."""

from __future__ import annotations

import torch
from torch import Tensor


def scan_step(g: Tensor, v: Tensor, state: Tensor) -> Tensor:
    """h = exp(g) h + v: all [B, C]."""
    return g.exp() * state + v


def selective_step(q: Tensor, k: Tensor, v: Tensor, dt: Tensor, rates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """h = exp(dt rates) h + dt v k^T, o = h q: q, k [B, N], v, dt [B, C], rates [C, N] <= 0, state [B, C, N]."""
    state = (dt[..., None] * rates).exp() * state + (dt * v)[..., None] * k[:, None]
    return (state * q[:, None]).sum(-1), state


def scan_loop(g: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Every h [B, T, C] of one sequence a row, and the last one [B, C]."""
    states: list[Tensor] = []
    for t in range(g.shape[1]):
        state = scan_step(g[:, t], v[:, t], state)
        states.append(state)
    return torch.stack(states, 1) if states else g.new_zeros(g.shape), state


def selective_loop(q: Tensor, k: Tensor, v: Tensor, dt: Tensor, rates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Every o [B, T, C] of one sequence a row, and the last state [B, C, N]."""
    outputs: list[Tensor] = []
    for t in range(v.shape[1]):
        output, state = selective_step(q[:, t], k[:, t], v[:, t], dt[:, t], rates, state)
        outputs.append(output)
    return torch.stack(outputs, 1) if outputs else v.new_zeros(v.shape), state
