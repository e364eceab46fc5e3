"""What comes from the tokens before: a vector of the token before, and decayed sums; in pieces and packed too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from archsearch.mixers.layer.packing import Packing


@dataclass(frozen=True, slots=True)
class History:
    """Where tokens stand and what the cache keeps by name, [B or N, ...] each; without a cache nothing came before."""

    packing: Packing | None = None
    memories: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])

    def delayed(self, name: str, x: Tensor) -> Tensor:
        """`x` [B, T, ...] of the token before; at the first what the memory `name` [B or N, ...] keeps, else zero."""
        memory = self.memories.get(name)
        if x.shape[1] == 0:
            return x
        before = self._first(memory, x)
        moved = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
        made = torch.where(_spread(self._starts(x), x), before, moved)
        if memory is not None:
            memory.copy_(self._last(memory, x))
        return made

    def decayed_sum(self, name: str, log_decay: Tensor | None, added: Tensor) -> Tensor:
        """A_t = exp(g_t) A_(t-1) + b_t for b [B, T, HV, K] and g [B, T, HV] or [B, T, HV, K]; None: no decay.

        By doubling, in log2(T) passes: decays are only multiplied, so nothing overflows.
        """
        memory = self.memories.get(name)
        if added.shape[1] == 0:
            return added
        factor = torch.ones_like(added) if log_decay is None else _channels(log_decay.exp(), added)
        start = _spread(self._starts(added), added)
        total = torch.where(start, added + factor * self._first(memory, added), added)
        factor = torch.where(start, 0.0, factor)
        step = 1
        while step < added.shape[1]:
            total = total + factor * _later(total, step)
            factor = factor * _later(factor, step)
            step *= 2
        if memory is not None:
            memory.copy_(self._last(memory, total))
        return total

    def _starts(self, x: Tensor) -> Tensor:
        """[T], whether a token is the first of its sequence in this piece."""
        return torch.arange(x.shape[1], device=x.device) == 0 if self.packing is None else self.packing.place == 0

    def _first(self, memory: Tensor | None, x: Tensor) -> Tensor:
        """What comes before each sequence, spread over its tokens: [B, 1, ...] or [1, T, ...]."""
        if memory is None:
            return torch.zeros_like(x[:, :1])
        kept = memory.to(x.dtype)
        return kept.clone()[:, None] if self.packing is None else kept[self.packing.sequence][None]

    def _last(self, memory: Tensor, x: Tensor) -> Tensor:
        """What the memory keeps after this piece; an empty sequence keeps what it had."""
        if self.packing is None:
            return x[:, -1].detach().to(memory.dtype)
        ends, lengths = self.packing.offsets[1:] - 1, self.packing.offsets.diff()
        found = x[0, ends.clamp_min(0)].detach().to(memory.dtype)
        return torch.where((lengths > 0).view(-1, *(1 for _ in memory.shape[1:])), found, memory)


def _spread(tokens: Tensor, x: Tensor) -> Tensor:
    """[T] against [B, T, ...]."""
    return tokens.view(1, -1, *(1 for _ in x.shape[2:]))


def _channels(factor: Tensor, like: Tensor) -> Tensor:
    """[B, T, HV] or [B, T, HV, K] as [B, T, HV, K]."""
    return (factor if factor.dim() == like.dim() else factor[..., None]).expand(like.shape)


def _later(x: Tensor, step: int) -> Tensor:
    """`x` [B, T, ...] of `step` tokens before, zero at the first ones."""
    return torch.cat([torch.zeros_like(x[:, :step]), x[:, :-step]], dim=1)
