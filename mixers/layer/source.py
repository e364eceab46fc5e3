"""What makes operands of rows of the fused projection, and what lifts such rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archsearch.kernels.entering import entered
from archsearch.mixers.layer import options as o
from archsearch.mixers.layer.entries import early_entry
from archsearch.mixers.layer.history import History
from archsearch.mixers.layer.initialisation import Stream, gate_constant
from archsearch.mixers.layer.plan import LayerPlan, Part
from archsearch.mixers.layer.shapes import as_channels, as_heads

NOTHING_BEFORE = History()
"""Without a cache, one sequence a row."""


class Lift(nn.Module):
    """What a projection is after the fused product, W_up and bias: [B, T, inputs] -> [B, T, size]."""

    def __init__(self, part_map: o.Map, heads: int, dim: int, stream: Stream) -> None:
        super().__init__()
        self.up: nn.Parameter | None = None
        if isinstance(part_map, o.LowRank):
            rank = cast(int, part_map.rank)
            shape = (heads * dim, rank) if part_map.shared else (heads, rank, dim)
            self.up = nn.Parameter((stream / "up").normal(*shape))
        self.bend = part_map.bend if isinstance(part_map, o.LowRank) else "none"
        self.bias = nn.Parameter(torch.zeros(heads * dim)) if part_map.bias else None

    def forward(self, rows: Tensor) -> Tensor:
        """One product at most: shared rows go to all heads, else each head lifts its own."""
        if self.up is None:
            return rows if self.bias is None else rows + self.bias.to(rows.dtype)
        rows = torch.tanh(rows) if self.bend == "tanh" else torch.sigmoid(rows) if self.bend == "sigmoid" else rows
        if self.up.dim() == 2:
            return F.linear(rows, self.up, self.bias)
        lifted = as_channels(torch.einsum("bthr,hrd->bthd", as_heads(rows, self.up.shape[1]), self.up))
        return lifted if self.bias is None else lifted + self.bias.to(lifted.dtype)


class Source(nn.Module, ABC):
    """Operands that are made alike. `rows` are those of each, lifted and convolved; `done` holds those made before."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__()
        self.names = [part.name for part in parts]
        self.heads, self.dim = parts[0].heads, parts[0].dim
        self.early = early_entry(plan, parts)
        part_map = parts[0].map
        self.lift = None if part_map is None or part_map == o.Linear() else Lift(part_map, self.heads, self.dim, stream)

    def lifted(self, rows: Tensor) -> Tensor:
        """The projection's whole result [B, T, n * size]."""
        return rows if self.lift is None else self.lift(rows)

    def forward(
        self,
        rows: Mapping[str, Tensor],
        positions: Tensor | None,
        done: Mapping[str, Tensor],
        history: History = NOTHING_BEFORE,
    ) -> dict[str, Tensor]:
        """The operands by name, raw but for those that the layer itself needs."""
        return entered(self.early, self.raw(rows, done), self.constants())

    @abstractmethod
    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The operands by name, as their entries take them; each source says how."""

    def constants(self) -> dict[str, Tensor]:
        """What their entries take besides, by name."""
        return {}

    def _shaped(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows as [B, T, heads] or [B, T, heads, dim]."""
        return {name: rows[name] if self.dim == 1 else as_heads(rows[name], self.dim) for name in self.names}

    def _constant(self, values: Tensor) -> nn.Parameter:
        """One constant a number of the operand: [HV] or [HV, dim]."""
        return gate_constant(values if self.dim == 1 else as_heads(values, self.dim))
