"""Steps and drift: what a recall leaves of what it found, and how far target and prediction move from token to token.

Figure 3 of arXiv 2606.08804, for every row that recalls.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from archsearch.mixers.probes.algebra import length, recall
from archsearch.mixers.probes.anatomy import Part, evaluate
from archsearch.mixers.probes.quantities import Found, LeftOut, Name, Quantity, density, mean, median, most
from archsearch.mixers.probes.replay import Moment


def contraction(parts: Sequence[Part], tensors: dict[str, Tensor]) -> list[Found]:
    """beta k.x of every row that recalls: its error at x is multiplied by 1 - beta k.x. Operands [B, T, HV, ...]."""
    rows = [part for part in parts if part.recalls]
    if not rows:
        return [LeftOut(Name.CONTRACTION, "no row recalls what it overwrites")]
    return [_steps(part, tensors) for part in rows]


def _steps(part: Part, tensors: dict[str, Tensor]) -> Quantity:
    like = next(iter(tensors.values()))
    product = (evaluate(part.row.write, tensors, like) * evaluate(part.row.residual, tensors, like)).sum(-1)
    outside = (product <= 0) | (product >= 2)
    figures = {
        "mean": mean(product),
        "median": median(product),
        "share_outside": mean(outside.double()),
        "largest_factor": most((1 - product).abs()),
    }
    return Quantity(Name.CONTRACTION, part.label, figures, {"step": density(product)})


class Drift:
    """|z_t - z_(t-1)|, |S^T (x_t - x_(t-1))| and the size of their difference, S = S_(t-1), of rows with both."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._rows = [part for part in parts if part.delta]
        self._last: dict[str, tuple[Tensor, Tensor]] = {}
        self._sizes: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {part.label: [] for part in self._rows}

    def see(self, moment: Moment) -> None:
        """From the second token on."""
        for part in self._rows:
            target = evaluate(part.target, moment.tensors, moment.before[..., 0, :])
            residual = evaluate(part.residual, moment.tensors, moment.before[..., 0])
            if part.label in self._last:
                earlier, address = self._last[part.label]
                wanted, predicted = target - earlier, recall(moment.before, residual - address)
                sizes = (length(wanted), length(predicted), length(wanted - predicted))
                self._sizes[part.label].append(sizes)
            self._last[part.label] = (target, residual)

    def found(self) -> list[Found]:
        """Means and medians over the tokens."""
        if not self._rows:
            return [LeftOut(Name.DRIFT, "no row has both a target and a recall")]
        return [self._of(part) for part in self._rows]

    def _of(self, part: Part) -> Quantity:
        names = ("target", "prediction", "residual")
        columns = dict(zip(names, map(torch.stack, zip(*self._sizes[part.label], strict=True)), strict=True))
        figures = {name: mean(sizes) for name, sizes in columns.items()}
        figures |= {f"{name}_median": median(sizes) for name, sizes in columns.items()}
        return Quantity(Name.DRIFT, part.label, figures, {name: density(sizes) for name, sizes in columns.items()})
