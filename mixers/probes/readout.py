"""What the query reads against what the key reads, both from the state before the token (Figure 2 of 2606.08804)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from archsearch.lowering.normal_form import NormalForm
from archsearch.mixers.probes.algebra import cosine, principal, recall
from archsearch.mixers.probes.anatomy import Part, evaluate
from archsearch.mixers.probes.quantities import Curve, Found, LeftOut, Name, Quantity, curve, density, mean, median
from archsearch.mixers.probes.replay import Moment

MOST_OF_IT = 0.9
"""The share of the query reads' variance whose components are counted in a figure."""


@dataclass(slots=True)
class _Reads:
    """Sums over tokens: query reads, their squares, the key reads' squares, and cosines a token."""

    count: int = 0
    total: Tensor | float = 0.0
    query_square: Tensor | float = 0.0
    key_square: Tensor | float = 0.0
    cosines: list[Tensor] = field(default_factory=list[Tensor])


class Readout:
    """cos(S^T q, S^T k) with S = S_(t-1), k the write address, and what of the key reads the query reads span."""

    def __init__(self, form: NormalForm, parts: Sequence[Part]) -> None:
        self._query = form.read.address
        self._rows = [part for part in parts if part.writes] if self._query else []
        self._reads = {part.label: _Reads() for part in self._rows}

    def see(self, moment: Moment) -> None:
        """From the second token on: the first reads an empty state."""
        if moment.time == 0:
            return
        like = moment.before[..., 0]
        of_query = recall(moment.before, evaluate(self._query, moment.tensors, like))
        for part in self._rows:
            of_key = recall(moment.before, evaluate(part.row.write, moment.tensors, like))
            _add(self._reads[part.label], of_query, of_key)

    def found(self) -> list[Found]:
        """The cosine and the energy curve of every row that writes."""
        if not self._rows:
            reason = "no row writes, or nothing is read"
            return [LeftOut(Name.READOUT, reason), LeftOut(Name.ENERGY, reason)]
        return [found for part in self._rows for found in _told(part.label, self._reads[part.label])]


def _add(reads: _Reads, of_query: Tensor, of_key: Tensor) -> None:
    reads.cosines.append(cosine(of_query, of_key))
    query, key = of_query.double(), of_key.double()
    reads.count += len(query)
    reads.total = reads.total + query.sum(0)
    reads.query_square = reads.query_square + torch.einsum("bhv,bhw->hvw", query, query)
    reads.key_square = reads.key_square + torch.einsum("bhv,bhw->hvw", key, key)


def _told(label: str, reads: _Reads) -> list[Found]:
    cosines = torch.stack(reads.cosines)
    cosines_found = Quantity(
        Name.READOUT,
        label,
        {"mean": mean(cosines), "median": median(cosines), "mean_size": mean(cosines.abs())},
        {"cosine": density(cosines)},
    )
    return [cosines_found, _energy(label, reads)]


def _energy(label: str, reads: _Reads) -> Quantity:
    """Shares inside the first r principal components of the query reads: of their variance, of the key reads' energy.

    Components are of the centred query reads; energy is the sum of squares.
    """
    total, squares = torch.as_tensor(reads.total), torch.as_tensor(reads.query_square)
    average = total / reads.count
    covariance = squares / reads.count - average[:, :, None] * average[:, None, :]
    values, vectors = principal(covariance)
    energy = torch.einsum("hvr,hvw,hwr->hr", vectors, torch.as_tensor(reads.key_square), vectors).clamp(min=0)
    variance, inside = _shares(values), _shares(energy)
    ranks = range(1, values.shape[-1] + 1)
    enough = (variance < MOST_OF_IT).sum(-1, keepdim=True)
    at = enough.clamp(max=values.shape[-1] - 1)
    curves: dict[str, Curve] = {"query_variance": curve(ranks, variance), "key_energy": curve(ranks, inside)}
    figures = {
        "components_for_90_percent": mean((enough + 1).T.double()),
        "key_energy_inside": mean(inside.gather(-1, at).T),
    }
    return Quantity(Name.ENERGY, label, figures, curves)


def _shares(parts: Tensor) -> Tensor:
    """Cumulative shares [HV, V]; NaN where there is nothing to share."""
    return parts.cumsum(-1) / parts.sum(-1, keepdim=True)
