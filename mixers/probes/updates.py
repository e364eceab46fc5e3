"""The size and rank of each token's change to the state, and the health of the state itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from archsearch.lowering.normal_form import NormalForm
from archsearch.mixers.probes.algebra import SMALL, effective_rank, singular_values, size
from archsearch.mixers.probes.anatomy import Cause, kept
from archsearch.mixers.probes.quantities import Found, Name, Quantity, curve, mean, mean_over, median, most, quantile
from archsearch.mixers.probes.replay import Moment, Wrote

COUNTED = 1e-4
"""A singular value counts into a rank from this share of the largest on; below it float32 has the word."""
SHOWN = 16
"""Singular values of a curve."""
DEAD = 1e-3
"""A channel with a smaller decay factor holds nothing."""


class Updates:
    """Frobenius norms of decay, erase, write (recall and target) and of all together over that of S_(t-1); singular
    values of S_t - S_(t-1) at `times`.
    """

    def __init__(self, times: Sequence[int]) -> None:
        self._times = frozenset(times)
        self._shares: dict[str, list[Tensor]] = {}
        self._spectra: list[Tensor] = []

    def see(self, moment: Moment) -> None:
        """Ratios from the second token on: the first changes an empty state."""
        changes = _changes(moment)
        whole = sum(changes.values(), torch.zeros_like(moment.before))
        if moment.time in self._times and bool(whole.isfinite().all()):
            self._spectra.append(singular_values(whole))
        if moment.time == 0:
            return
        held = size(moment.before)
        for name, change in {**changes, "all": whole}.items():
            share = torch.where(held > SMALL, size(change) / held, torch.nan)
            self._shares.setdefault(name, []).append(share)

    def found(self) -> list[Found]:
        """Medians by cause, the 90th percentile and mean of all together, ranks."""
        columns = {name: torch.stack(shares) for name, shares in self._shares.items()}
        figures = {f"{name}_median": median(shares) for name, shares in columns.items()}
        figures |= {"all_mean": mean(columns["all"]), "all_percentile_90": quantile(columns["all"], 0.9)}
        if not self._spectra:
            return [Quantity(Name.UPDATES, "", figures)]
        values = torch.stack(self._spectra)  # [samples, B, HV, min(K, V)]
        largest = values[..., :1]
        relative = torch.where(largest > SMALL, values / largest, torch.nan)
        figures |= {
            "rank": mean((relative > COUNTED).double().sum(-1)),
            "rank_most": most((relative > COUNTED).double().sum(-1)),
            "effective_rank": mean(effective_rank(values)),
        }
        count = min(SHOWN, values.shape[-1])
        spectrum = curve(range(1, count + 1), mean_over(relative[..., :count], (0, 1)))
        return [Quantity(Name.UPDATES, "", figures, {"singular_values": spectrum})]


class Health:
    """|S| token by token, effective rank at `times`, numbers that are none, channels that forget at once."""

    def __init__(self, form: NormalForm, tensors: dict[str, Tensor], times: Sequence[int]) -> None:
        self._times = tuple(times)
        self._sizes: list[Tensor] = []
        self._ranks: dict[int, Tensor] = {}
        self._lost = 0.0
        self._dead = _dead(form, tensors)

    def see(self, moment: Moment) -> None:
        """Every state after its token."""
        self._sizes.append(size(moment.after))
        healthy = moment.after.isfinite()
        self._lost = self._lost + (~healthy).sum((0, 2, 3)).double()
        if moment.time in self._times and bool(healthy.all()):
            self._ranks[moment.time] = effective_rank(singular_values(moment.after))

    def found(self) -> list[Found]:
        """Norms at the end and at most, ranks, counts."""
        sizes = torch.stack(self._sizes)  # [T, B, HV]
        figures = {
            "norm_last": mean(sizes[-1]),
            "norm_most": most(sizes),
            "not_finite": mean(torch.as_tensor(self._lost)[None]),
        }
        curves = {"norm": curve(range(1, len(sizes) + 1), mean_over(sizes, (1,)).T)}
        if self._ranks:
            ranks = torch.stack(list(self._ranks.values()))
            figures["effective_rank_last"] = mean(ranks[-1])
            curves["effective_rank"] = curve([time + 1 for time in self._ranks], mean_over(ranks, (1,)).T)
        if self._dead is not None:
            figures["dead_channels"] = mean(self._dead)
        return [Quantity(Name.HEALTH, "", figures, curves)]


def _changes(moment: Moment) -> dict[str, Tensor]:
    """What decay, erase and write each add to the state, rows and decays of one kind together."""
    found: dict[str, Tensor] = {}
    for step in moment.steps:
        for cause, change in step.changes().items():
            writing = isinstance(step, Wrote) and step.part.writes
            name = Cause.WRITE.value if writing else cause.value
            found[name] = change if name not in found else found[name] + change
    return found


def _dead(form: NormalForm, tensors: dict[str, Tensor]) -> Tensor | None:
    """1 for a channel [B, T, HV, 1 or K -> HV last] that forgets at once, 0 for another; None without a decay."""
    if not form.decays:
        return None
    like = next(tensors[operand.name] for operand in form.operands if operand.is_address)
    factor = kept(form, len(form.decays), tensors, like).abs()
    return (factor < DEAD).double().expand(*like.shape[:-1], factor.shape[-1]).movedim(-2, -1)
