"""Causal depthwise convolution over time, with the last inputs as its cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archsearch.mixers.layer.initialisation import Stream
from archsearch.mixers.layer.packing import Packing
from archsearch.mixers.layer.shapes import parted


class ShortConvolution(nn.Module):
    """y_t = sum_j w_j x_(t - W + 1 + j) (+ b), each channel on its own; inputs before the sequence are zero.

    `channels`: each operand's stream and number of channels; w and b start as U(-W^-1/2, W^-1/2), as torch's own do.
    whole: what takes the place of the convolution of whole sequences [B, T, C], T > 0, if anything does; it returns
    neighbouring channels apart.
    """

    def __init__(self, channels: Sequence[tuple[Stream, int]], width: int, *, bias: bool = False) -> None:
        super().__init__()
        self.width = width
        bound = width**-0.5
        weights = [(stream / "convolution").uniform(-bound, bound, size, width) for stream, size in channels]
        biases = [(stream / "convolution_bias").uniform(-bound, bound, size) for stream, size in channels]
        self.weight = nn.Parameter(torch.cat(weights))
        self.bias = nn.Parameter(torch.cat(biases)) if bias else None
        self.whole: Callable[[Tensor, tuple[int, ...]], tuple[Tensor, ...]] | None = None

    def forward(self, x: Tensor, cache: Tensor | None = None, packing: Packing | None = None) -> Tensor:
        """[B, T, C] -> [B, T, C]; `cache` [B or N, W - 1, C], the inputs before this piece, is moved on in place."""
        if packing is not None:
            return self._packed(x, cache, packing)
        past = self.width - 1
        before = x.new_zeros(x.shape[0], past, x.shape[2]) if cache is None else cache.to(x.dtype)
        padded = torch.cat([before, x], dim=1)
        if cache is not None:
            cache.copy_(padded[:, x.shape[1] :].detach())
        return self._convolve(padded) if x.shape[1] else x

    def apart(
        self, x: Tensor, sizes: Sequence[int], cache: Tensor | None = None, packing: Packing | None = None
    ) -> tuple[Tensor, ...]:
        """As `forward`, neighbouring channels of these sizes apart: [B, T, n] each."""
        if self.whole is not None and cache is None and packing is None and x.shape[1]:
            return self.whole(x, tuple(sizes))
        return parted(self(x, cache, packing), list(sizes))

    def _packed(self, x: Tensor, cache: Tensor | None, packing: Packing) -> Tensor:
        """Lay W - 1 inputs before each sequence, convolve the row once, and keep what belongs to a token."""
        past = self.width - 1
        starts = packing.offsets[:-1] + past * torch.arange(packing.sequences, device=x.device)
        slots = starts[:, None] + torch.arange(past, device=x.device)
        tokens = starts[packing.sequence] + past + packing.place
        padded = x.new_zeros(1, x.shape[1] + past * packing.sequences, x.shape[2])
        if cache is not None:
            padded[0, slots] = cache.to(x.dtype)
        padded = padded.index_copy(1, tokens, x)
        if cache is not None:
            ends = slots + packing.offsets.diff()[:, None]
            cache.copy_(padded[0, ends].detach())
        return self._convolve(padded)[:, tokens - past] if x.shape[1] else x

    def _convolve(self, padded: Tensor) -> Tensor:
        rows = padded.transpose(1, 2)
        return F.conv1d(rows, self.weight[:, None], self.bias, groups=len(self.weight)).transpose(1, 2)
