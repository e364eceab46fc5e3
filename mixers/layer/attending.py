"""Which tokens attention sees and what it keeps of them: causal, in a window, packed, piece by piece.

An export carries this file's text as it stands, so it needs torch alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(slots=True)
class TokenCache:
    """What attention keeps of the tokens it has seen, changed in place. It carries no gradient.

    rows: each [B, tokens, ...], the newest token last. seen [B]: tokens of each sequence, kept or not. present
    [B, tokens]: which rows a sequence has, where sequences differ in length; None is all of them.
    """

    rows: list[Tensor]
    seen: Tensor
    present: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, all sequences."""
        return sum(row.nbytes for row in self.rows)

    def positions(self, tokens: int) -> Tensor:
        """The places [B, tokens] of the next tokens."""
        return self.seen[:, None] + torch.arange(tokens, device=self.seen.device)

    def grow(
        self, rows: Sequence[Tensor], here: Tensor | None, limit: int | None
    ) -> tuple[list[Tensor], Tensor | None]:
        """Kept and new rows [B, kept + T, ...], and which of them there are [B, kept + T], None for all.

        here [B, T]: which new rows are tokens, first in each sequence; None is all. limit: rows to keep; None is all.
        """
        whole = [torch.cat([old.to(new.dtype), new], 1) for old, new in zip(self.rows, rows, strict=True)]
        kept, present = [row.detach() for row in whole], None
        if here is not None or self.present is not None:
            present = torch.cat([_all(self.rows[0], self.present), _all(rows[0], here)], 1)
            kept = self._sorted(kept, present)
        self.rows = [_last(row, limit) for row in kept]
        self.present = None if self.present is None else _last(self.present, limit)
        self.seen = self.seen + (rows[0].shape[1] if here is None else here.sum(1))
        return whole, present

    def _sorted(self, rows: list[Tensor], present: Tensor) -> list[Tensor]:
        """The rows that are there last, in order, no more columns than the longest sequence has."""
        most = int(present.sum(1).max()) if len(present) else 0
        order = present.int().argsort(dim=1, stable=True)[:, present.shape[1] - most :]
        ordered = present.gather(1, order)
        self.present = None if bool(ordered.all()) else ordered
        return [row[torch.arange(len(row), device=row.device)[:, None], order] for row in rows]


QUERIES = 512
"""Tokens of a later piece that look back together, so that what they may see is a mask of so many rows."""


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int | None = None,
    offsets: Tensor | None = None,
    present: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale q k^T) v over the tokens that each token sees: [B, T, H, D] -> [B, T, H, V]; scale is D^-1/2.

    k [B, past + T, H or 1, D], v [B, past + T, H or 1, V]: of the last `past` tokens before, too. A token sees itself
    and what came before it, with a window itself and the window - 1 tokens before it; of sequences packed by `offsets`
    [N + 1], B = 1 and past = 0, only its own; of `present` [B, past + T] only those that are there, of the T the first.
    """
    if offsets is not None and q.shape[1]:
        return _by_sequence(q, k, v, window, offsets, scale)
    tokens, past = q.shape[1], k.shape[1] - q.shape[1]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.expand(-1, q.shape[1], -1, -1) for x in (k, v))
    whole = window is None or past + tokens <= window
    if past == 0 and whole:  # what is no token comes after all that are
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    elif past == 0 and window is not None and tokens > 2 * window:
        o = _by_blocks(q, k, v, window, scale)
    elif tokens == 1 and whole and present is None:
        o = F.scaled_dot_product_attention(q, k, v, scale=scale)
    else:
        ends = [min(first + QUERIES, tokens) for first in range(0, max(tokens, 1), QUERIES)]
        parts = [_looking_back(q, k, v, window, present, scale, end) for end in ends]
        o = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    return o.transpose(1, 2)


def laid_out(x: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Sequences packed as [1, T, C] by offsets [N + 1] -> rows [N, longest, C], and which of them are tokens."""
    lengths = offsets.diff()
    here = torch.arange(int(lengths.max()), device=x.device) < lengths[:, None]
    return x.new_zeros(*here.shape, x.shape[2]).masked_scatter(here[..., None], x), here


def _visible(places: Tensor, seen: int, window: int | None) -> Tensor:
    """[T, seen], True where the token at a place sees another, all counted from the first that is there."""
    others = torch.arange(seen, device=places.device)
    mask = others <= places[:, None]
    return mask if window is None else mask & (others > places[:, None] - window)


def _looking_back(
    q: Tensor, k: Tensor, v: Tensor, window: int | None, present: Tensor | None, scale: float | None, end: int
) -> Tensor:
    """The last QUERIES before `end` of the tokens [B, H, T, D], all that they may see under one mask."""
    past, begin = k.shape[2] - q.shape[2], max(end - 1, 0) // QUERIES * QUERIES
    first = 0 if window is None else max(0, past + begin - window + 1)
    places = torch.arange(begin, end, device=q.device) + past - first
    mask = _visible(places, past + end - first, window)
    if present is not None:  # what is no token sees itself, so that no row is empty
        own = places[:, None] == torch.arange(mask.shape[1], device=q.device)
        mask = (mask & present[:, None, None, first : past + end]) | own
    k, v = (x[:, :, first : past + end] for x in (k, v))
    return F.scaled_dot_product_attention(q[:, :, begin:end], k, v, attn_mask=mask, scale=scale)


def _by_sequence(q: Tensor, k: Tensor, v: Tensor, window: int | None, offsets: Tensor, scale: float | None) -> Tensor:
    """Packed sequences [1, T, H, D] as batches of those whose lengths round up to one power of two."""
    lengths, outputs, places = offsets.diff(), list[Tensor](), list[Tensor]()
    powers = torch.frexp(lengths - 1.0).exponent.where(lengths > 0, -1)
    for power in range(int(powers.max()) + 1):
        chosen = (powers == power).nonzero()[:, 0]
        if len(chosen):
            place = torch.arange(int(lengths[chosen].max()), device=q.device)
            here, starts = place < lengths[chosen, None], offsets[chosen, None]
            rows = torch.where(here, starts + place, starts)
            outputs.append(attended(q[0, rows], k[0, rows], v[0, rows], window=window, scale=scale)[here])
            places.append(rows[here])
    return torch.cat(outputs)[torch.cat(places).argsort()][None]


def _by_blocks(q: Tensor, k: Tensor, v: Tensor, window: int, scale: float | None) -> Tensor:
    """A window over a long piece [B, H, T, D]: blocks of `window` tokens, each beside the block before it."""
    batch, tokens = q.shape[0], q.shape[2]
    spare = -tokens % window

    def blocks(x: Tensor, before: int) -> Tensor:
        """[B, H, T, D] -> [B * blocks, H, before + window, D]."""
        rows = F.pad(x, (0, 0, before, spare)).unfold(2, before + window, window)
        return rows.permute(0, 2, 1, 4, 3).flatten(0, 1)

    count = (tokens + spare) // window
    mask = _visible(torch.arange(window, device=q.device) + window, 2 * window, window).repeat(count, 1, 1)
    mask[0, :, :window] = False
    o = F.scaled_dot_product_attention(
        blocks(q, 0), blocks(k, window), blocks(v, window), attn_mask=mask.repeat(batch, 1, 1)[:, None], scale=scale
    )
    return o.reshape(batch, count, *o.shape[1:]).transpose(1, 2).flatten(2, 3)[:, :, :tokens]


def _all(like: Tensor, given: Tensor | None) -> Tensor:
    """`given`, or True for every row of [B, tokens, ...]."""
    return torch.ones(like.shape[:2], dtype=torch.bool, device=like.device) if given is None else given


def _last(x: Tensor, limit: int | None) -> Tensor:
    """The last `limit` of the second dimension."""
    return x if limit is None else x[:, max(0, x.shape[1] - limit) :].contiguous()
