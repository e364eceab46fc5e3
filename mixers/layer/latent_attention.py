"""Multi-head latent attention (arXiv 2405.04434, section 2.1): keys and values are made of one latent a token.

The cache holds that latent and one rotary key for all heads, nothing a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archsearch.kernels.entering import exact
from archsearch.mixers.layer.attending import TokenCache, attended
from archsearch.mixers.layer.attention import TokenMixer, no_tokens
from archsearch.mixers.layer.initialisation import Stream
from archsearch.mixers.layer.partner_options import LatentSizes
from archsearch.mixers.layer.rotary import rotated
from archsearch.mixers.layer.shapes import as_channels, as_heads, parted

EPS = 1e-6
"""Of the norms of the latents."""


class LatentAttention(TokenMixer):
    """Causal softmax attention whose keys and values are made of a latent: [B, T, width] -> [B, T, width].

    c = RMSNorm(W_c x), [rank] (Eq. 9); keys k = [W_k c; rotated(W_r x)], the second part one for all heads (Eqs. 10,
    15, 17); values v = W_v c (Eq. 11); queries q = [W_q x; rotated(W_qr x)], of RMSNorm(W_d x) in place of x with a
    query rank (Eqs. 12-14, 16); o = softmax(q k^T / sqrt(content + rotary)) v, then a linear map (Eqs. 18-19).
    """

    def __init__(self, width: int, sizes: LatentSizes, *, stream: Stream | None = None) -> None:
        super().__init__()
        stream, self.sizes, heads = stream or Stream.fresh(), sizes, sizes.heads
        inputs = (sizes.query_rank or sizes.queries, sizes.rank, sizes.rotary)
        rows = [(stream / n).normal(s, width) for n, s in zip(("q", "latent", "rotary"), inputs, strict=True)]
        self.projection = nn.Parameter(torch.cat(rows))
        self.norm = nn.RMSNorm(sizes.rank, EPS)
        self.keys = nn.Parameter((stream / "keys").normal(heads, sizes.content, sizes.rank))
        self.values = nn.Parameter((stream / "values").normal(heads, sizes.value, sizes.rank))
        self.query_norm = nn.RMSNorm(sizes.query_rank, EPS) if sizes.query_rank else None
        up = (stream / "queries").normal(sizes.queries, sizes.query_rank) if sizes.query_rank else None
        self.queries = None if up is None else nn.Parameter(up)
        self.output = nn.Parameter((stream / "output").normal(width, heads * sizes.value))

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
        sizes = self.sizes
        q, c, r = parted(F.linear(x, self.projection), (sizes.query_rank or sizes.queries, sizes.rank, sizes.rotary))
        c, r, present = _normed(c, self.norm), rotated(r[:, :, None], positions)[:, :, 0], None
        content, turned = parted(self._queries(q), (sizes.content, sizes.rotary))
        turned = rotated(turned, positions)
        if cache is not None:
            (c, r), present = cache.grow((c, r), here, None)
        if cache is not None and x.shape[1] == 1:
            o = self._step(content, turned, c, r, present)
        else:
            o = self._whole(content, turned, c, r, offsets, present)
        return F.linear(as_channels(o), self.output)

    def _queries(self, q: Tensor) -> Tensor:
        """[B, T, H, content + rotary]."""
        if self.queries is not None and self.query_norm is not None:
            q = F.linear(_normed(q, self.query_norm), self.queries)
        return as_heads(q, self.sizes.content + self.sizes.rotary)

    def _whole(
        self, content: Tensor, turned: Tensor, c: Tensor, r: Tensor, offsets: Tensor | None, present: Tensor | None
    ) -> Tensor:
        """Keys and values of every token made of its latent c and rotary key r: [B, T, H, value]."""
        made = torch.einsum("btr,hkr->bthk", c, self.keys), torch.einsum("btr,hvr->bthv", c, self.values)
        k = torch.cat([made[0], r[:, :, None].expand(-1, -1, self.sizes.heads, -1)], -1)
        q = torch.cat([content, turned], -1)
        return attended(q, k, made[1], offsets=offsets, present=present)

    def _step(self, content: Tensor, turned: Tensor, c: Tensor, r: Tensor, present: Tensor | None) -> Tensor:
        """The same of one token, in the space of the latents: no key or value of an earlier token is made again."""
        q = torch.cat([torch.einsum("bthk,hkr->bthr", content, self.keys), turned], -1)
        k, scale = torch.cat([c, r], -1)[:, :, None], (self.sizes.content + self.sizes.rotary) ** -0.5
        mixed = attended(q, k, c[:, :, None], present=present, scale=scale)
        return torch.einsum("bthr,hvr->bthv", mixed, self.values)

    def init_cache(self, batch: int) -> TokenCache:
        """No token seen, for `batch` sequences."""
        return no_tokens(self.projection, batch, (self.sizes.rank,), (self.sizes.rotary,))


def _normed(x: Tensor, norm: nn.RMSNorm) -> Tensor:
    """In float32, whatever the dtype of `x`."""
    return F.rms_norm(exact(x), norm.normalized_shape, exact(norm.weight), EPS).to(x.dtype)
