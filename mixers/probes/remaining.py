"""What is left of a token's own write: no other token's write is in it, so it is forgetting alone.

A write along w at token tau becomes y_t = M_t ... M_(tau+1) w, whatever its target was. Read at its own address,
w.y_t / (w.w) is 1 at first; every later step takes an amount that is known exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from archsearch.mixers.probes.algebra import SMALL
from archsearch.mixers.probes.anatomy import Cause, Part
from archsearch.mixers.probes.quantities import Found, LeftOut, Name, Quantity, curve, mean, median
from archsearch.mixers.probes.replay import Decayed, Moment

CAUSES = (Cause.DECAY, Cause.ERASE, Cause.DELTA)
HALF = 0.5


@dataclass(slots=True)
class _Own:
    """One row's followed writes: where they are, [B, HV, M, K]; w / (w.w), zero until it is written.

    left: [B, HV, M] a token. changes: [causes, B, HV, M] a token.
    """

    part: Part
    place: Tensor
    key: Tensor
    left: list[Tensor] = field(default_factory=list[Tensor])
    changes: list[Tensor] = field(default_factory=list[Tensor])


class Remaining:
    """Follows the writes of the tokens `times` of every row that writes. like: an operand [B, T, HV, K]."""

    def __init__(self, parts: Sequence[Part], like: Tensor, times: Sequence[int]) -> None:
        self._times = torch.tensor(times)
        zeros = torch.zeros(len(like), like.shape[2], len(times), like.shape[3], dtype=like.dtype)
        self._own = [_Own(part, zeros, zeros) for part in parts if part.writes]

    def see(self, moment: Moment) -> None:
        """Carry every followed write through the token; begin with the token's own."""
        for own in self._own:
            _carry(own, moment, self._times == moment.time)

    def found(self) -> list[Found]:
        """What is left by distance, after how many tokens half is gone, and who took it."""
        if not self._own:
            return [LeftOut(Name.REMAINING, "no row writes")]
        return [_told(own, self._times) for own in self._own]


def _carry(own: _Own, moment: Moment, now: Tensor) -> None:
    before = entry = own.place
    taken = {cause: torch.zeros_like(own.key[..., 0]) for cause in CAUSES}
    group: tuple[int, int] | None = None
    for step in moment.steps:
        if isinstance(step, Decayed):
            change, cause = (step.factor - 1)[:, :, None] * own.place, Cause.DECAY
        else:
            row = step.part.row
            if group != (row.decays, row.stage):
                group, entry = (row.decays, row.stage), own.place
            cause = Cause.ERASE if step.part.erases else Cause.DELTA
            change = _recalled_change(step.address, step.residual, before if row.previous else entry)
            if step.part.label == own.part.label:
                own.key = torch.where(now[:, None], (step.address / _square(step.address))[:, :, None], own.key)
                own.place = own.place + now[:, None] * step.address[:, :, None]
        own.place = own.place + change
        taken[cause] = taken[cause] + (own.key * change).sum(-1)
    own.left.append((own.key * own.place).sum(-1))
    own.changes.append(torch.stack([taken[cause] for cause in CAUSES]))


def _recalled_change(address: Tensor, residual: Tensor | None, place: Tensor) -> Tensor:
    """-b (a.y) of [B, HV, K] and y [B, HV, M, K]."""
    if residual is None:
        return torch.zeros_like(place)
    return -address[:, :, None] * (residual[:, :, None] * place).sum(-1, keepdim=True)


def _square(vectors: Tensor) -> Tensor:
    """[..., 1]; NaN for a zero vector, which writes nothing."""
    found = vectors.square().sum(-1, keepdim=True)
    return torch.where(found > SMALL, found, torch.nan)


def _told(own: _Own, times: Tensor) -> Quantity:
    left = torch.stack(own.left).double()  # [T, B, HV, M]
    tokens = len(left)
    later = torch.arange(tokens)[:, None] > times  # [T, M]
    halved = later[:, None, None] & (left < HALF)
    first = torch.where(halved.any(0), halved.long().argmax(0) - times, torch.nan).double()
    taken = torch.where(later[:, None, None], (-torch.stack(own.changes, 1).double()).clamp(min=0), 0.0).sum(1)
    whole = taken.sum(0)
    figures = {"half_gone_after": median(_heads_last(first)), "left_at_the_end": mean(_heads_last(left[-1]))}
    figures |= {
        f"by_{cause.value}": mean(_heads_last(torch.where(whole > SMALL, taken[i] / whole, torch.nan)))
        for i, cause in enumerate(CAUSES)
    }
    distances = [0, *(2**n for n in range(tokens.bit_length()) if 2**n <= tokens - 1 - int(times.min()))]
    lines = torch.stack([_at_distance(left, times, distance) for distance in distances], -1)
    return Quantity(Name.REMAINING, own.part.label, figures, {"left": curve(distances, lines)})


def _at_distance(left: Tensor, times: Tensor, distance: int) -> Tensor:
    """The mean over sequences and followed tokens that are `distance` old somewhere, [HV]."""
    inside = torch.nonzero(times + distance < len(left))[:, 0]
    return left[times[inside] + distance, :, :, inside].nanmean((0, 1))


def _heads_last(values: Tensor) -> Tensor:
    """[B, HV, M] -> [B, M, HV]."""
    return values.transpose(1, 2)
