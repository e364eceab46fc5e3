"""Angles between a rule's addresses, and what an erase at another address would have done to the read.

Figure 2 of arXiv 2606.26560: a learned erase address disturbs the readout less than others would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from archsearch.lowering.normal_form import NormalForm
from archsearch.mixers.probes.algebra import SMALL, cosine, length, recall
from archsearch.mixers.probes.anatomy import Part, addresses_of, evaluate
from archsearch.mixers.probes.quantities import Found, LeftOut, Name, Quantity, density, mean, median
from archsearch.mixers.probes.replay import Moment, Wrote


def geometry(form: NormalForm, tensors: dict[str, Tensor]) -> list[Found]:
    """|cos| of every pair of addresses of a token; beside it that of random directions, sqrt(2 / (pi K))."""
    pairs = list(combinations([operand.name for operand in addresses_of(form)], 2))
    if not pairs:
        return [LeftOut(Name.GEOMETRY, "the rule has one address")]
    return [_angle(first, second, tensors) for first, second in pairs]


def _angle(first: str, second: str, tensors: dict[str, Tensor]) -> Quantity:
    a, b = tensors[first], tensors[second]
    found = cosine(a, b)
    random = math.sqrt(2 / (math.pi * a.shape[-1]))
    figures = {"mean_size": mean(found.abs()), "random_directions": (random,) * a.shape[2]}
    return Quantity(Name.GEOMETRY, f"{first}·{second}", figures, {"cosine": density(found)})


class Collateral:
    """|o after an erase - o before| / |o before|, o = S^T q, for the erase's own address and for others in its place.

    The states are those of the rule as it is and the gates stay; only the address of the erase at hand is replaced.
    """

    def __init__(self, form: NormalForm, parts: Sequence[Part], tensors: dict[str, Tensor], seed: int) -> None:
        self._query = form.read.address
        self._rows = {part.label: part for part in parts if part.erases} if self._query else {}
        random = torch.Generator().manual_seed(seed)
        keys = [part for part in parts if part.writes]
        self._others = {label: _others(part, keys[:1], tensors, random) for label, part in self._rows.items()}
        self._sizes = {label: {name: list[Tensor]() for name in self._others[label]} for label in self._rows}

    def see(self, moment: Moment) -> None:
        """Every erase of the token, once with each address."""
        for step in moment.steps:
            if not isinstance(step, Wrote) or step.part.label not in self._rows:
                continue
            like = moment.before[..., 0]
            query = evaluate(self._query, moment.tensors, like)
            before = length(recall(step.entry, query))
            for name, replaced in self._others[step.part.label].items():
                token = moment.tensors | {operand: tensor[:, moment.time] for operand, tensor in replaced.items()}
                address = evaluate(step.part.row.write, token, like)
                recalled = recall(step.entry, evaluate(step.part.row.residual, token, like))
                change = (query * address).sum(-1).abs() * length(recalled)
                share = torch.where(before > SMALL, change / before, torch.nan)
                self._sizes[step.part.label][name].append(share)

    def found(self) -> list[Found]:
        """Means and medians by address."""
        if not self._rows:
            return [LeftOut(Name.COLLATERAL, "no row erases without writing")]
        return [self._of(label) for label in self._rows]

    def _of(self, label: str) -> Quantity:
        columns = {name: torch.stack(sizes) for name, sizes in self._sizes[label].items()}
        figures = {name: mean(sizes) for name, sizes in columns.items()}
        figures |= {f"{name}_median": median(sizes) for name, sizes in columns.items()}
        return Quantity(Name.COLLATERAL, label, figures)


def _others(
    part: Part, keys: Sequence[Part], tensors: dict[str, Tensor], random: torch.Generator
) -> dict[str, dict[str, Tensor]]:
    """Stand-ins [B, T, HV, K] for the address operands of an erase, by the kind of stand-in; each keeps its size."""
    names = dict.fromkeys(term.vector.name for term in part.row.write if term.vector is not None)
    own = {name: tensors[name] for name in names}
    found = {"learned": own, "random": {name: _random(x, random) for name, x in own.items()}}
    rolled = {name: x.roll(x.shape[2] // 2, dims=2) for name, x in own.items()}  # value heads may share a key head
    if any(not torch.equal(rolled[name], x) for name, x in own.items()):
        found["other_head"] = rolled
    found["other_token"] = {name: x.roll(max(1, x.shape[1] // 2), dims=1) for name, x in own.items()}
    for key in keys:
        found["write_key"] = {name: _as_long(evaluate(key.row.write, tensors, x), x) for name, x in own.items()}
    return found


def _random(like: Tensor, random: torch.Generator) -> Tensor:
    return _as_long(torch.randn(like.shape, generator=random, dtype=like.dtype), like)


def _as_long(directions: Tensor, like: Tensor) -> Tensor:
    lengths = length(directions)[..., None]
    return torch.where(lengths > 0, directions / lengths, torch.zeros_like(directions)) * length(like)[..., None]
