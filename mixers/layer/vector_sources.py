"""Vectors of a rule as modules: of lifted and convolved rows, or of operands made before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from archsearch.kernels.entering import exact, normalised
from archsearch.kernels.entry import Norm
from archsearch.mixers.layer import options as o
from archsearch.mixers.layer.history import History
from archsearch.mixers.layer.initialisation import Stream, gate_constant
from archsearch.mixers.layer.plan import LayerPlan, Part
from archsearch.mixers.layer.rotary import rotated
from archsearch.mixers.layer.source import NOTHING_BEFORE, Source


class VectorSource(Source):
    """Addresses or values; those that turn with the position, or that are of the token before, are made so here."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        source = cast(o.Vector, parts[0].source)
        self.rotary, self.delayed = source.rotary, source.delayed

    def forward(
        self,
        rows: Mapping[str, Tensor],
        positions: Tensor | None,
        done: Mapping[str, Tensor],
        history: History = NOTHING_BEFORE,
    ) -> dict[str, Tensor]:
        """[B, T, H K] -> [B, T, H, K] each."""
        vectors = super().forward(rows, positions, done)
        if self.delayed:
            return {name: history.delayed(name, vector) for name, vector in vectors.items()}
        if not self.rotary or positions is None:
            return vectors
        return {name: rotated(vector, positions) for name, vector in vectors.items()}

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows."""
        return self._shaped(rows)


class ProjectionSource(Source):
    """P u of another vector u, head by head."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        self.of = cast(o.Projection, parts[0].source).of
        self.weight = nn.Parameter((stream / "weight").normal(self.heads, self.dim, self.dim, std=self.dim**-0.5))

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, H, K] of the other -> [B, T, H, K]."""
        return {self.names[0]: torch.einsum("bthk,hkl->bthl", done[self.of], self.weight)}


class StaticSource(Source):
    """One learned vector a head for every token."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        source = cast(o.Static, parts[0].source)
        self.norm = Norm(source.norm or "none")
        drawn = (stream / "weight").normal(self.heads, self.dim, std=self.dim**-0.5)
        self.weight = nn.Parameter(drawn if source.start is None else torch.full_like(drawn, source.start))

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[H, K] -> [B, T, H, K]."""
        like = rows[self.names[0]]
        vectors = normalised(self.weight, self.norm).to(like.dtype)
        return {self.names[0]: vectors.expand(*like.shape[:2], -1, -1)}


class ScaledSource(Source):
    """A learned factor times another vector u."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        source = cast(o.Scaled, parts[0].source)
        self.of, self.bounded = source.of, source.bounded
        shape = (self.heads, 1 if source.per == "head" else self.dim)
        start = math.log(source.start / (1 - source.start)) if source.bounded else source.start
        self.factor = gate_constant(torch.full(shape, start))

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, H, K] of the other -> [B, T, H, K]."""
        vector, factor = done[self.of], exact(self.factor)
        return {self.names[0]: vector * (torch.sigmoid(factor) if self.bounded else factor).to(vector.dtype)}


class GatedSource(Source):
    """scale * sigmoid(a) * u of another vector u."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        source = cast(o.Gated, parts[0].source)
        self.of, self.scale = source.of, source.scale

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, H, K] of the other -> [B, T, H, K]."""
        vector, gate = done[self.of], torch.sigmoid(exact(self._shaped(rows)[self.names[0]]))
        return {self.names[0]: vector * (self.scale * gate).to(vector.dtype)}


class ComplementSource(Source):
    """1 - exp(g) of a log decay g."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        self.of = cast(o.Complement, parts[0].source).of

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, H, K] -> [B, T, H, K]."""
        name = self.names[0]
        return {name: -torch.expm1(done[self.of]).to(rows[name].dtype)}


class OrthogonalSource(Source):
    """u - (k.u) k, u = gate * q."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        source = cast(o.Orthogonal, parts[0].source)
        self.of, self.to_, self.gate = source.of, source.to, source.gate

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, H, K] of all three -> [B, T, H, K]."""
        k, u = exact(done[self.to_]), done[self.gate] * exact(done[self.of])
        apart = u - (k * u).sum(-1, keepdim=True) * k
        return {self.names[0]: apart.to(done[self.of].dtype)}


class DelayedSource(Source):
    """Another vector, of the token before."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        self.of = cast(o.Delayed, parts[0].source).of

    def forward(
        self,
        rows: Mapping[str, Tensor],
        positions: Tensor | None,
        done: Mapping[str, Tensor],
        history: History = NOTHING_BEFORE,
    ) -> dict[str, Tensor]:
        """[B, T, heads, dim] -> the same."""
        name = self.names[0]
        return {name: history.delayed(name, self.raw(rows, done)[name])}

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The other vector as it is."""
        return {self.names[0]: done[self.of]}
