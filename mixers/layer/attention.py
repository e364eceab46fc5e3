"""The partners of a hybrid: causal softmax attention, and a short convolution that looks a few tokens back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archsearch.errors import ConfigError, OperandError
from archsearch.mixers.layer.cache import positions_of
from archsearch.mixers.layer.convolution import ShortConvolution
from archsearch.mixers.layer.initialisation import Stream
from archsearch.mixers.layer.packing import Packing, packing_of
from archsearch.mixers.layer.rotary import rotated
from archsearch.mixers.layer.shapes import as_channels, as_heads, parted


@dataclass(slots=True)
class AttentionCache:
    """Keys and values [B, H, tokens, D] of what was seen: it grows with the sequence. It carries no gradient."""

    keys: Tensor
    values: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, all sequences."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def tokens(self) -> int:
        """How many tokens were seen."""
        return self.keys.shape[2]


class Attention(nn.Module):
    """Causal softmax attention with rotary positions: [B, T, width] -> [B, T, width].

    Errors: ConfigError when the heads do not divide the width into even parts.
    """

    def __init__(self, width: int, heads: int, stream: Stream | None = None) -> None:
        super().__init__()
        if width % heads or (width // heads) % 2:
            raise ConfigError(
                f"attention needs heads of even width; got width={width}, heads={heads}. Change one of them"
            )
        stream = stream or Stream.fresh()
        self.heads, self.dim = heads, width // heads
        self.projection = nn.Parameter(torch.cat([(stream / name).normal(width, width) for name in ("q", "k", "v")]))
        self.output = nn.Parameter((stream / "output").normal(width, width))

    def forward(self, x: Tensor, cache: AttentionCache | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        """[B, T, width] -> the same; goes on after `cache`, which grows in place. cu_seqlens packs, without a cache.

        Errors: OperandError for a cache together with cu_seqlens.
        """
        packing = packing_of(x, cu_seqlens)
        if cache is not None and packing is not None:
            raise OperandError(
                "attention decodes with a cache or reads packed sequences, not both. Leave cu_seqlens out"
            )
        past = 0 if cache is None else cache.tokens
        positions = positions_of(x, packing, None) + past
        q, k, v = parted(as_heads(F.linear(x, self.projection), self.dim), self.heads, dim=2)
        q, k, v = (y.transpose(1, 2) for y in (rotated(q, positions), rotated(k, positions), v))
        if cache is not None:
            k, v = _grown(cache, k, v)
        mask = _mask(x, past, packing)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return F.linear(as_channels(o.transpose(1, 2)), self.output)

    def init_cache(self, batch: int) -> AttentionCache:
        """No token seen, for `batch` sequences."""
        empty = self.projection.new_zeros(batch, self.heads, 0, self.dim)
        return AttentionCache(empty, empty)


@dataclass(slots=True)
class ConvolutionCache:
    """The last inputs [B, W - 1, width]."""

    inputs: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes, all sequences."""
        return self.inputs.nbytes


class ConvolutionMixer(nn.Module):
    """A short causal convolution times a linear map, conv(x) * W x: the partner of the recall protocol (2312.04927)."""

    def __init__(self, width: int, kernel: int = 3, stream: Stream | None = None) -> None:
        super().__init__()
        stream = stream or Stream.fresh()
        self.convolution = ShortConvolution([(stream, width)], kernel, bias=True)
        self.projection = nn.Parameter((stream / "projection").normal(width, width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, cache: ConvolutionCache | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        """[B, T, width] -> [B, T, width]; `cache` and cu_seqlens as in `Mixer`."""
        inputs = None if cache is None else cache.inputs
        return self.convolution(x, inputs, packing_of(x, cu_seqlens)) * F.linear(x, self.projection, self.bias)

    def init_cache(self, batch: int) -> ConvolutionCache:
        """Zeros before the sequence, for `batch` sequences."""
        width, kernel = len(self.bias), self.convolution.width
        return ConvolutionCache(self.projection.new_zeros(batch, kernel - 1, width))


def _grown(cache: AttentionCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """All keys and values with the new ones; the cache keeps them."""
    k = torch.cat([cache.keys.to(k.dtype), k], dim=2)
    v = torch.cat([cache.values.to(v.dtype), v], dim=2)
    cache.keys, cache.values = k.detach(), v.detach()
    return k, v


def _mask(x: Tensor, past: int, packing: Packing | None) -> Tensor | None:
    """[T, past + T], True where a token sees another; None where the whole piece is plainly causal."""
    tokens = x.shape[1]
    if packing is not None:
        same = packing.sequence[:, None] == packing.sequence
        return same & (packing.place[:, None] >= packing.place)
    if past == 0:
        return None
    return torch.ones(tokens, past + tokens, dtype=torch.bool, device=x.device).tril(past)
