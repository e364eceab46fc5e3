"""Gate statistics that need no state: the budget of decay, delta and erase, and how long a channel remembers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from archsearch.lowering.normal_form import NormalForm
from archsearch.mixers.probes.anatomy import Cause, Part, kept, level
from archsearch.mixers.probes.quantities import (
    Found,
    LeftOut,
    Name,
    Quantity,
    curve,
    mean,
    quantile,
)

BINS = 10
"""Of the mean decay, over [0, 1]."""
SLOW = 0.9
"""A mean decay from which on the other gates have most to do (arXiv 2606.26560, section 4.5)."""


def gate_shares(form: NormalForm, parts: Sequence[Part], tensors: dict[str, Tensor]) -> list[Found]:
    """1 - abar, abar beta and abar gamma of each token, normalised; abar is the mean decay over channels and heads'
    gates are averaged over channels where they have them. A row that reads before a decay is not scaled by it.

    It is a budget of gates, not energy removed (arXiv 2606.26560, section 4.5). Operands [B, T, HV, ...].
    """
    recalling = [part for part in parts if part.recalls]
    present = [cause for cause in _causes(parts) if cause is not Cause.DECAY or form.decays]
    if len(present) < 2:
        only = f"only {present[0].value} forgets" if present else "nothing forgets"
        return [LeftOut(Name.GATES, f"{only}: there is nothing to share")]
    like = _like(form, tensors)
    whole = kept(form, len(form.decays), tensors, like).abs().mean(-1).expand(like.shape[:-1])
    sizes = {cause: torch.zeros_like(whole) for cause in present}
    if Cause.DECAY in sizes:
        sizes[Cause.DECAY] = 1 - whole
    for part in recalling:
        before = 0 if part.row.previous else part.row.decays
        seen = kept(form, before, tensors, like).abs().mean(-1)
        sizes[Cause.ERASE if part.erases else Cause.DELTA] += seen * level(part, tensors).abs()
    total = torch.stack(list(sizes.values())).sum(0)
    shares = {cause.value: torch.where(total > 0, size / total, torch.nan) for cause, size in sizes.items()}
    return [_told(shares, whole)]


def memory_length(form: NormalForm, tensors: dict[str, Tensor]) -> list[Found]:
    """1 / (1 - alpha) in tokens; median and 90th percentile over tokens and channels. None: it never forgets."""
    if not form.decays:
        return [LeftOut(Name.MEMORY, "nothing decays")]
    like = _like(form, tensors)
    alpha = kept(form, len(form.decays), tensors, like).abs().double()
    alpha = alpha.expand(*like.shape[:-1], alpha.shape[-1]).movedim(-2, -1)  # [B, T, 1 or K, HV]
    figures = {"median": _lengths(quantile(alpha, 0.5)), "percentile_90": _lengths(quantile(alpha, 0.9))}
    channels = alpha.flatten(0, 1).median(0).values.sort(0).values  # of each channel, by rising memory
    count = len(channels)
    across = [(channel + 0.5) / count for channel in range(count)]
    curves = {"channels": curve(across, (1 / (1 - channels)).T)} if count > 1 else {}
    return [Quantity(Name.MEMORY, "", figures, curves)]


def _told(shares: dict[str, Tensor], whole: Tensor) -> Quantity:
    figures = {name: mean(share) for name, share in shares.items()}
    slow = whole >= SLOW
    figures |= {
        f"{name}_where_slow": mean(torch.where(slow, share, torch.nan))
        for name, share in shares.items()
        if name != Cause.DECAY.value
    }
    bins = (whole * BINS).floor().clamp(max=BINS - 1)
    middles = [(place + 0.5) / BINS for place in range(BINS)]
    curves = {
        name: curve(
            middles,
            torch.stack(
                [torch.where(bins == place, share, torch.nan).flatten(0, 1).nanmean(0) for place in range(BINS)], -1
            ),
        )
        for name, share in shares.items()
    }
    return Quantity(Name.GATES, "", figures, curves)


def _causes(parts: Sequence[Part]) -> list[Cause]:
    found = [Cause.DECAY]
    found += [Cause.DELTA] if any(part.delta for part in parts) else []
    return found + ([Cause.ERASE] if any(part.erases for part in parts) else [])


def _like(form: NormalForm, tensors: dict[str, Tensor]) -> Tensor:
    """An operand [B, T, HV, K]."""
    return next(tensors[operand.name] for operand in form.operands if operand.is_address)


def _lengths(alphas: tuple[float | None, ...]) -> tuple[float | None, ...]:
    return tuple(None if alpha is None or alpha >= 1 else 1 / (1 - alpha) for alpha in alphas)
