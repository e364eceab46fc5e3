"""Partners of a hybrid: softmax attention, whole or in a window; a short convolution that looks a few tokens back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archsearch.errors import ConfigError, OperandError
from archsearch.mixers.layer.attending import TokenCache, attended, laid_out
from archsearch.mixers.layer.cache import positions_of
from archsearch.mixers.layer.convolution import ShortConvolution
from archsearch.mixers.layer.initialisation import Stream
from archsearch.mixers.layer.packing import packing_of
from archsearch.mixers.layer.rotary import rotated
from archsearch.mixers.layer.shapes import as_channels, as_heads, parted


class TokenMixer(nn.Module, ABC):
    """Attention of any kind: what it sees of whole sequences, of packed ones, and of those in a cache."""

    def forward(self, x: Tensor, cache: TokenCache | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        """[B, T, width] -> the same; `cache` and cu_seqlens as in `Mixer`. Errors: OperandError for another's cache."""
        packing = packing_of(x, cu_seqlens)
        if cache is None:
            return self.seen(x, positions_of(x, packing, None), offsets=None if packing is None else packing.offsets)
        _check(self, cache, len(x) if packing is None else packing.sequences)
        if packing is None:
            return self.seen(x, cache.positions(x.shape[1]), cache)
        rows, here = laid_out(x, packing.offsets)
        return self.seen(rows, cache.positions(rows.shape[1]), cache, here)[here][None]

    @abstractmethod
    def seen(
        self,
        x: Tensor,
        positions: Tensor,
        cache: TokenCache | None = None,
        here: Tensor | None = None,
        *,
        offsets: Tensor | None = None,
    ) -> Tensor:
        """[B, T, width] -> the same. positions [B or 1, T]: of the tokens in their sequences. cache: of what came
        before; here [B, T]: which rows are tokens, first in each sequence. offsets [N + 1]: of packed ones."""

    @abstractmethod
    def init_cache(self, batch: int) -> TokenCache:
        """No token seen, for `batch` sequences."""


class Attention(TokenMixer):
    """Causal softmax attention with rotary positions: [B, T, width] -> [B, T, width].

    window: tokens that each sees, itself among them; None is all before it. The cache keeps no more than it needs of
    them: keys and values [B, tokens, H, D], the last window - 1.

    Errors: ConfigError when the heads do not divide the width into even parts, or for a window below 1.
    """

    def __init__(self, width: int, heads: int, window: int | None = None, *, stream: Stream | None = None) -> None:
        super().__init__()
        if width % heads or (width // heads) % 2:
            raise ConfigError(
                f"attention needs heads of even width; got width={width}, heads={heads}. Change one of them"
            )
        if window is not None and window < 1:
            raise ConfigError(f"attention needs a window of at least one token; got window={window}")
        stream = stream or Stream.fresh()
        self.heads, self.dim, self.window = heads, width // heads, window
        self.projection = nn.Parameter(torch.cat([(stream / name).normal(width, width) for name in ("q", "k", "v")]))
        self.output = nn.Parameter((stream / "output").normal(width, width))

    def seen(
        self,
        x: Tensor,
        positions: Tensor,
        cache: TokenCache | None = None,
        here: Tensor | None = None,
        *,
        offsets: Tensor | None = None,
    ) -> Tensor:
        """[B, T, width] -> the same; see `TokenMixer`."""
        q, k, v = parted(as_heads(F.linear(x, self.projection), self.dim), self.heads, dim=2)
        q, k, present = rotated(q, positions), rotated(k, positions), None
        if cache is not None:
            (k, v), present = cache.grow((k, v), here, None if self.window is None else self.window - 1)
        o = attended(q, k, v, window=self.window, offsets=offsets, present=present)
        return F.linear(as_channels(o), self.output)

    def init_cache(self, batch: int) -> TokenCache:
        """No token seen, for `batch` sequences."""
        return no_tokens(self.projection, batch, (self.heads, self.dim), (self.heads, self.dim))


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


def no_tokens(like: Tensor, batch: int, *shapes: tuple[int, ...]) -> TokenCache:
    """A cache of `batch` sequences without a token, whose rows have these shapes."""
    seen = torch.zeros(batch, dtype=torch.int64, device=like.device)
    return TokenCache([like.new_zeros(batch, 0, *shape) for shape in shapes], seen)


def _check(mixer: TokenMixer, cache: TokenCache, sequences: int) -> None:
    """OperandError for a cache of another layer, or of another number of sequences."""
    if not isinstance(cache, TokenCache):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OperandError(f"cache must come from init_cache({sequences}); got {type(cache).__name__}")
    if len(cache.seen) != sequences:
        raise OperandError(
            f"the cache must hold {sequences} sequences; got {len(cache.seen)}. Use init_cache({sequences})"
        )
    held, own = ([list(row.shape[2:]) for row in each.rows] for each in (cache, mixer.init_cache(0)))
    if held != own:
        raise OperandError(
            f"the cache holds {held} a token; this layer needs {own}. Use its own init_cache({sequences})"
        )
