"""Whether an old token can still be read, and which later token, by which of its steps, took it away.

Of some tokens tau the state is read at their own write address, r_t = S_t^T w / (w.w): what a write alone would have
left there. p_t = r_t.z / (z.z) is how much of the value z is in it. Every later step changes p by an amount that is
known exactly, so the amounts add up to p_t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from archsearch.mixers.probes.algebra import SMALL, cosine, length
from archsearch.mixers.probes.anatomy import Cause, Part, evaluate
from archsearch.mixers.probes.quantities import Found, LeftOut, Name, Quantity, curve, mean, median
from archsearch.mixers.probes.replay import Decayed, Moment

GONE = 0.1
"""The share of its value at tau below which a token counts as lost, whatever took it."""
CAUSES = tuple(Cause)


@dataclass(slots=True)
class _Tracked:
    """One row's sampled writes. keys: w / (w.w), values: z / (z.z) and wanted: z, [B, HV, M, ...]; what each token did.

    cosines, errors, shares: [B, HV, M] a token, of r and z; changes: [causes, B, HV, M] a token, of p.
    """

    part: Part
    keys: Tensor
    wanted: Tensor
    values: Tensor
    cosines: list[Tensor] = field(default_factory=list[Tensor])
    errors: list[Tensor] = field(default_factory=list[Tensor])
    shares: list[Tensor] = field(default_factory=list[Tensor])
    changes: list[Tensor] = field(default_factory=list[Tensor])


class Forgetting:
    """Follows the tokens `times` of every row that writes."""

    def __init__(self, parts: Sequence[Part], tensors: dict[str, Tensor], times: Sequence[int]) -> None:
        self._times = torch.tensor(times)
        writing = [part for part in parts if part.writes]
        self._tracked = [_tracked(part, {n: x[:, self._times] for n, x in tensors.items()}) for part in writing]

    def see(self, moment: Moment) -> None:
        """What is left of every followed token, and what this one did to it."""
        for each in self._tracked:
            read = torch.einsum("bhkv,bhmk->bhmv", moment.after, each.keys)
            each.cosines.append(cosine(read, each.wanted))
            each.errors.append(length(read - each.wanted) / length(each.wanted))
            each.shares.append((read * each.values).sum(-1))
            each.changes.append(_changes(each, moment))

    def found(self) -> list[Found]:
        """Readability by distance, and what took it."""
        if not self._tracked:
            reason = "no row writes"
            return [LeftOut(Name.READABILITY, reason), LeftOut(Name.ERASURE, reason)]
        return [found for each in self._tracked for found in self._of(each)]

    def _of(self, each: _Tracked) -> list[Found]:
        shares = torch.stack(each.shares).double()  # [T, B, HV, M]
        first = _at(shares, self._times)
        later = torch.arange(len(shares))[:, None] > self._times  # [T, M]
        gone = later[:, None, None] & (shares < GONE * first) & (first > 0)
        readable = _readability(each, shares, first, self._times)
        return [readable, _erasure(each, first, later, gone, self._times)]


def _tracked(part: Part, tensors: dict[str, Tensor]) -> _Tracked:
    like = next(iter(tensors.values()))
    key = evaluate(part.row.write, tensors, like).transpose(1, 2)
    value = evaluate(part.target, tensors, like).transpose(1, 2)
    return _Tracked(part, key / _square(key), value, value / _square(value))


def _square(vectors: Tensor) -> Tensor:
    """[..., 1]; NaN for a zero vector, at which nothing can be read."""
    found = vectors.square().sum(-1, keepdim=True)
    return torch.where(found > SMALL, found, torch.nan)


def _changes(each: _Tracked, moment: Moment) -> Tensor:
    """What each cause adds to p of every followed token, [causes, B, HV, M]."""
    found = {cause: torch.zeros_like(each.keys[..., 0]) for cause in CAUSES}
    for step in moment.steps:
        if isinstance(step, Decayed):
            held = torch.einsum("bhkv,bhmv->bhmk", step.entry, each.values)
            found[Cause.DECAY] += ((step.factor - 1)[:, :, None] * each.keys * held).sum(-1)
            continue
        along = (each.keys * step.address[:, :, None]).sum(-1)
        for cause, side in step.sides().items():
            found[cause] += along * (each.values * side[:, :, None]).sum(-1)
    return torch.stack([found[cause] for cause in CAUSES])


def _at(columns: Tensor, times: Tensor) -> Tensor:
    """Of [T, B, HV, M] each followed token's entry at its own time, [B, HV, M]."""
    return columns[times, :, :, torch.arange(len(times))].movedim(0, -1)


def _readability(each: _Tracked, shares: Tensor, first: Tensor, times: Tensor) -> Quantity:
    """By distance t - tau: cosine of r and z (mean), their relative error and p_t / p_tau (medians), share lost."""
    tokens = len(shares)
    cosines, errors = torch.stack(each.cosines).double(), torch.stack(each.errors).double()
    kept = torch.where(first > 0, shares / first, torch.nan)
    lost = torch.where(kept.isnan(), torch.nan, (kept < GONE).double())
    distances = [0, *(2**n for n in range(tokens.bit_length()) if 2**n <= tokens - 1 - int(times.min()))]
    columns = {"cosine": (cosines, _mean_of), "error": (errors, _median_of), "kept": (kept, _median_of)}
    columns["lost"] = (lost, _mean_of)
    curves = {
        name: curve(distances, torch.stack([_at_distance(values, times, d, of) for d in distances], -1))
        for name, (values, of) in columns.items()
    }
    figures = {
        "cosine_at_once": mean(_heads_last(_at(cosines, times))),
        "cosine_at_the_end": mean(_heads_last(cosines[-1])),
        "lost_at_the_end": mean(_heads_last(lost[-1])),
        "written": mean(_heads_last((first > 0).double())),
    }
    return Quantity(Name.READABILITY, each.part.label, figures, curves)


def _mean_of(values: Tensor) -> Tensor:
    """Of [N, HV]; what is not a number is left out."""
    return values.nanmean(0)


def _median_of(values: Tensor) -> Tensor:
    """The same, for what has no bound."""
    return values.nanmedian(0).values


def _at_distance(columns: Tensor, times: Tensor, distance: int, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Over sequences and followed tokens that are `distance` old somewhere, [HV]."""
    inside = times + distance < len(columns)
    if not bool(inside.any()):
        return torch.full((columns.shape[2],), torch.nan, dtype=columns.dtype)
    reached = columns[..., inside]
    return of(_heads_last(_at(reached, times[inside] + distance)).flatten(0, 1))


def _erasure(each: _Tracked, first: Tensor, later: Tensor, gone: Tensor, times: Tensor) -> Quantity:
    """By cause: the share of all that was taken from followed tokens until they were lost, and of largest takers."""
    until = later[:, None, None] & (
        gone.long().cumsum(0) - gone.long() == 0
    )  # the token that lost it is the last counted
    taken = (-torch.stack(each.changes, 1).double()).clamp(min=0)  # [causes, T, B, HV, M]
    taken = torch.where(until & (first > 0), taken, 0.0)
    by_cause = taken.sum(1)
    whole = by_cause.sum(0)
    total, place = taken.flatten(0, 1).max(0)
    cause, token = place // len(gone), place % len(gone)
    touched = total > SMALL
    lost_at = torch.where(gone.any(0), gone.long().argmax(0), -1)
    distances = torch.where(lost_at >= 0, lost_at - times, torch.nan).double()
    figures = {
        f"{name.value}_share": mean(_heads_last(torch.where(whole > SMALL, by_cause[i] / whole, torch.nan)))
        for i, name in enumerate(CAUSES)
    }
    figures |= {
        f"{name.value}_largest": mean(_heads_last(torch.where(touched, (cause == i).double(), torch.nan)))
        for i, name in enumerate(CAUSES)
    }
    figures["distance_when_lost"] = median(_heads_last(distances))
    events = _events(first, total, cause, token, lost_at, times)
    return Quantity(Name.ERASURE, each.part.label, figures, events=events)


def _events(
    first: Tensor, total: Tensor, cause: Tensor, token: Tensor, lost_at: Tensor, times: Tensor
) -> tuple[dict[str, Any], ...]:
    """One object a followed token that lost something: where it stood, who took most, how much, when it was gone."""
    events: list[dict[str, Any]] = []
    lost = cast(list[list[int]], torch.nonzero((total > SMALL) & (first > 0) & (total / first).isfinite()).tolist())
    for b, h, m in lost:
        at = int(lost_at[b, h, m])
        events.append(
            {
                "sequence": b,
                "head": h,
                "written": int(times[m]),
                "taken_by": int(token[b, h, m]),
                "cause": CAUSES[int(cause[b, h, m])].value,
                "share": float(total[b, h, m] / first[b, h, m]),
                "lost": None if at < 0 else at,
            }
        )
    return tuple(events)


def _heads_last(values: Tensor) -> Tensor:
    """[B, HV, M] -> [B, M, HV]."""
    return values.transpose(1, 2)
