"""The kernels of the scans as functions of autograd. Tensors are contiguous and of one device; states are float32."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from archsearch.kernels.scan import programs

SCAN = (32, 32)
"""Tokens and channels of a block of `scan`."""
SELECTIVE = (16, 256)
"""Tokens of a block of `selective_scan`, and numbers of the state: 16 of each of 16 channels keep to the registers."""


class Programs(NamedTuple):
    """Programs: one a sequence and block of channels. tokens: of each sequence that is not packed."""

    sequences: int
    blocks: int
    tokens: int

    @classmethod
    def of(cls, x: Tensor, cu_seqlens: Tensor | None, width: int) -> Programs:
        """Of [B, T, C], in blocks of `width` channels."""
        sequences = len(x) if cu_seqlens is None else len(cu_seqlens) - 1
        return cls(sequences, -(-x.shape[2] // width), x.shape[1])

    @property
    def size(self) -> tuple[int, int]:
        """As a launch takes it."""
        return self.sequences, self.blocks


class Scan(torch.autograd.Function):
    """(g, v, state, cu_seqlens) -> (every h, the last ones)."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, g: Tensor, v: Tensor, state: Tensor, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """[B, T, C] and [sequences, C], float32."""
        grid = Programs.of(v, cu_seqlens, SCAN[1])
        output, final = torch.empty(v.shape, dtype=torch.float32, device=v.device), torch.empty_like(state)
        sizes = {"tokens": grid.tokens, "channels": v.shape[2], "BT": SCAN[0], "BC": SCAN[1]}
        with torch.cuda.device_of(v):
            launched(programs.scan_forward, grid, g, v, state, cu_seqlens, output, final, **sizes, num_warps=4)
        ctx.save_for_backward(g, state, cu_seqlens, output)
        ctx.value_type = v.dtype
        return output, final

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_final: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients of g, v and the state."""
        g, state, cu_seqlens, output = ctx.saved_tensors
        grid = Programs.of(g, cu_seqlens, SCAN[1])
        d_g, d_v, d_state = (
            torch.empty_like(g),
            torch.empty(g.shape, dtype=ctx.value_type, device=g.device),
            state.clone(),
        )
        sizes = {"tokens": grid.tokens, "channels": g.shape[2], "BT": SCAN[0], "BC": SCAN[1]}
        slopes = d_output.contiguous(), d_final.contiguous()
        with torch.cuda.device_of(g):
            launched(
                programs.scan_backward,
                grid,
                g,
                state,
                cu_seqlens,
                output,
                *slopes,
                d_g,
                d_v,
                d_state,
                **sizes,
                num_warps=4,
            )
        return d_g, d_v, d_state, None


class Selective(torch.autograd.Function):
    """(q, k, v, dt, rates, state, cu_seqlens) -> (outputs, the last states)."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dt: Tensor,
        rates: Tensor,
        state: Tensor,
        cu_seqlens: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """[B, T, C] in the dtype of v and [sequences, C, N] float32."""
        sizes, keep = _sizes(v, rates), any(ctx.needs_input_grad)
        grid = Programs.of(v, cu_seqlens, sizes["BC"])
        output, final = torch.empty_like(v), torch.empty_like(state)
        slots = v.shape[0] * v.shape[1] // SELECTIVE[0] + grid.sequences
        entering = state.new_empty(slots, *rates.shape) if keep else None
        with torch.cuda.device_of(v):
            tensors = (q, k, v, dt, rates, state, cu_seqlens, output, final, entering)
            launched(programs.selective_forward, grid, *tensors, grid.tokens, **sizes, num_warps=8)
        ctx.save_for_backward(q, k, v, dt, rates, cu_seqlens, entering)
        return output, final

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients of everything but cu_seqlens; those of q, k and rates are sums over programs."""
        q, k, v, dt, rates, cu_seqlens, entering = ctx.saved_tensors
        sizes = _sizes(v, rates)
        grid = Programs.of(v, cu_seqlens, sizes["BC"])
        d_q, d_k = (x.new_zeros(grid.blocks, *x.shape, dtype=torch.float32) for x in (q, k))
        d_v, d_dt, d_state = torch.empty_like(v), torch.empty_like(dt), d_final.clone()
        d_rates = rates.new_zeros(grid.sequences, *rates.shape, dtype=torch.float32)
        with torch.cuda.device_of(v):
            found = (d_q, d_k, d_v, d_dt, d_rates, d_state)
            tensors = (q, k, v, dt, rates, cu_seqlens, entering, d_output.contiguous(), d_final.contiguous(), *found)
            rows = v.shape[0] * v.shape[1]
            launched(programs.selective_backward, grid, *tensors, grid.tokens, rows, **sizes, num_warps=8)
        return d_q.sum(0).to(q.dtype), d_k.sum(0).to(k.dtype), d_v, d_dt, d_rates.sum(0).to(rates.dtype), d_state, None


def _sizes(v: Tensor, rates: Tensor) -> dict[str, int]:
    numbers = rates.shape[1]
    wide = 1 << (numbers - 1).bit_length()
    channels = max(1, SELECTIVE[1] // wide)
    return {"channels": v.shape[2], "numbers": numbers, "BT": SELECTIVE[0], "BC": channels, "BN": wide}


def launched(kernel: Any, grid: Programs, *tensors: Tensor | int | None, num_warps: int, **sizes: int) -> None:
    """One program a sequence and block of channels."""
    kernel[grid.size](*tensors, **sizes, num_warps=num_warps)
