"""Operand sources as modules: from rows of the fused projection to the operands as the rule takes them.

Every gate, decay and sign is computed and returned in float32 (float64 in a float64 layer), whatever the rows' type.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archsearch.mixers.layer import options as o
from archsearch.mixers.layer.initialisation import Stream, gate_constant
from archsearch.mixers.layer.norms import activated, exact, normalised
from archsearch.mixers.layer.plan import Part
from archsearch.mixers.layer.rotary import rotated
from archsearch.mixers.layer.shapes import as_channels, as_heads, parted

LOWEST_LOG = -20.0
"""A signed decay is never closer to 0 than exp of this."""


class Lift(nn.Module):
    """What a projection is after the fused product, W_up and bias: [B, T, inputs] -> [B, T, size]."""

    def __init__(self, part_map: o.Map, heads: int, dim: int, stream: Stream) -> None:
        super().__init__()
        self.up: nn.Parameter | None = None
        if isinstance(part_map, o.LowRank):
            rank = cast(int, part_map.rank)
            shape = (heads * dim, rank) if part_map.shared else (heads, rank, dim)
            self.up = nn.Parameter((stream / "up").normal(*shape))
        self.bias = nn.Parameter(torch.zeros(heads * dim)) if part_map.bias else None

    def forward(self, rows: Tensor) -> Tensor:
        """One product at most: shared rows go to all heads, else each head lifts its own."""
        if self.up is None:
            return rows if self.bias is None else rows + self.bias.to(rows.dtype)
        if self.up.dim() == 2:
            return F.linear(rows, self.up, self.bias)
        lifted = as_channels(torch.einsum("bthr,hrd->bthd", as_heads(rows, self.up.shape[1]), self.up))
        return lifted if self.bias is None else lifted + self.bias.to(lifted.dtype)


class Source(nn.Module, ABC):
    """Operands that are made alike. `rows` are theirs, lifted and convolved; `done` holds the operands made before."""

    def __init__(self, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__()
        self.names = [part.name for part in parts]
        self.heads, self.dim = parts[0].heads, parts[0].dim
        part_map = parts[0].map
        self.lift = None if part_map is None or part_map == o.Linear() else Lift(part_map, self.heads, self.dim, stream)

    def lifted(self, rows: Tensor) -> Tensor:
        """The projection's whole result [B, T, n * size]."""
        return rows if self.lift is None else self.lift(rows)

    @abstractmethod
    def forward(self, rows: Tensor, positions: Tensor | None, done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The operands by name; each source says how."""

    def _shaped(self, rows: Tensor) -> Tensor:
        """[B, T, HV] or [B, T, HV, dim] in float32."""
        return exact(rows) if self.dim == 1 else as_heads(exact(rows), self.dim)

    def _constant(self, values: Tensor) -> nn.Parameter:
        """One constant a number of the operand: [HV] or [HV, dim]."""
        return gate_constant(values if self.dim == 1 else as_heads(values, self.dim))

    def _per_head(self, values: Tensor) -> Tensor:
        """[HV] against [B, T, HV] or [B, T, HV, dim]."""
        return exact(values) if self.dim == 1 else exact(values)[:, None]


class VectorSource(Source):
    """Addresses or values: activation, norm, rotation."""

    def __init__(self, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(parts, stream)
        self.source = cast(o.Vector, parts[0].source)

    def forward(self, rows: Tensor, positions: Tensor | None, done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, n H K] -> n times [B, T, H, K]."""
        vectors = as_heads(activated(rows, self.source.activation or "none"), self.dim)
        vectors = normalised(vectors, self.source.norm or "none")
        if self.source.rotary and positions is not None:
            vectors = rotated(vectors, positions)
        return dict(zip(self.names, parted(vectors, self.heads, dim=2), strict=True))


class ProjectionSource(Source):
    """P u of another vector u, head by head."""

    def __init__(self, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(parts, stream)
        self.source = cast(o.Projection, parts[0].source)
        self.weight = nn.Parameter((stream / "weight").normal(self.heads, self.dim, self.dim, std=self.dim**-0.5))

    def forward(self, rows: Tensor, positions: Tensor | None, done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, H, K] of the other -> [B, T, H, K]."""
        vectors = torch.einsum("bthk,hkl->bthl", done[self.source.of], self.weight)
        return {self.names[0]: normalised(vectors, self.source.norm or "none")}


class StaticSource(Source):
    """One learned vector a head for every token."""

    def __init__(self, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(parts, stream)
        self.norm: o.Norm = cast(o.Static, parts[0].source).norm or "none"
        self.weight = nn.Parameter((stream / "weight").normal(self.heads, self.dim, std=self.dim**-0.5))

    def forward(self, rows: Tensor, positions: Tensor | None, done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[H, K] -> [B, T, H, K]."""
        vectors = normalised(self.weight, self.norm).to(rows.dtype)
        return {self.names[0]: vectors.expand(*rows.shape[:2], -1, -1)}


class SigmoidSource(Source):
    """Gates scale * sigmoid(a + b)."""

    def __init__(self, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(parts, stream)
        source = cast(o.Sigmoid, parts[0].source)
        self.scale = source.scale
        self.bias = None if source.bias is None else self._constant(torch.full((parts[0].size,), source.bias))

    def forward(self, rows: Tensor, positions: Tensor | None, done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, n * size] -> n gates."""
        raw = self._shaped(rows)
        gates = torch.sigmoid(raw if self.bias is None else raw + self.bias)
        gates = gates if self.scale == 1.0 else gates * self.scale
        return dict(zip(self.names, parted(gates, self.heads, dim=2), strict=True))


class StepSizeSource(Source):
    """Gates softplus(a + dt_bias)."""

    def __init__(self, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(parts, stream)
        source = cast(o.StepSize, parts[0].source)
        steps = (stream / "dt_bias").log_uniform(source.low, source.high, parts[0].size).clamp_(min=source.floor)
        self.dt_bias = self._constant(inverse_softplus(steps))

    def forward(self, rows: Tensor, positions: Tensor | None, done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, size] -> the step size."""
        return {self.names[0]: F.softplus(self._shaped(rows) + exact(self.dt_bias))}


class StepDecaySource(Source):
    """Log decays -exp(A_log) dt."""

    def __init__(self, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(parts, stream)
        source = cast(o.StepDecay, parts[0].source)
        self.of = source.of
        self.A_log = gate_constant(log_rates(stream, source.low, source.high, self.heads))

    def forward(self, rows: Tensor, positions: Tensor | None, done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The step size [B, T, HV] -> [B, T, HV]."""
        return {self.names[0]: -exact(self.A_log).exp() * done[self.of]}


class MambaDecaySource(Source):
    """Log decays -exp(A_log) softplus(a + dt_bias), or one of their bounded forms."""

    def __init__(self, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(parts, stream)
        source = cast("o.MambaDecay | o.BoundedDecay", parts[0].source)
        self.bounded = source if isinstance(source, o.BoundedDecay) else None
        if self.bounded is None:
            rates = log_rates(stream, cast(o.MambaDecay, source).low, cast(o.MambaDecay, source).high, self.heads)
        elif self.bounded.form == "eda":
            rates = log_rates(stream, 1.0, 16.0, self.heads)
        else:
            rates = torch.zeros(self.heads)
        self.A_log = gate_constant(rates)
        steps = (stream / "dt_bias").log_uniform(1e-3, 0.1, parts[0].size).clamp_(min=1e-4)
        self.dt_bias = self._constant(inverse_softplus(steps))

    def forward(self, rows: Tensor, positions: Tensor | None, done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, size] -> [B, T, HV] or [B, T, HV, K]."""
        step = self._shaped(rows) + exact(self.dt_bias)
        rate = self._per_head(self.A_log).exp()
        if self.bounded is None:
            return {self.names[0]: -rate * F.softplus(step)}
        bound = self.bounded.bound
        if self.bounded.form == "kda":
            return {self.names[0]: bound * torch.sigmoid(rate * step)}
        return {self.names[0]: -bound * torch.expm1(rate / bound * F.softplus(step))}


class LogSigmoidSource(Source):
    """Log decays logsigmoid(a) / divisor."""

    def __init__(self, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(parts, stream)
        self.divisor = cast(o.LogSigmoid, parts[0].source).divisor

    def forward(self, rows: Tensor, positions: Tensor | None, done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, size] -> [B, T, HV] or [B, T, HV, K]."""
        return {self.names[0]: F.logsigmoid(self._shaped(rows)) / self.divisor}


class FixedDecaySource(Source):
    """Log decays log(1 - 2^(-5-h)) of head h."""

    decay: Tensor

    def __init__(self, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(parts, stream)
        heads = torch.arange(self.heads, dtype=torch.float64)
        self.register_buffer("decay", torch.log1p(-(2.0 ** (-5 - heads))).float(), persistent=False)

    def forward(self, rows: Tensor, positions: Tensor | None, done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Nothing -> [B, T, HV] or [B, T, HV, K]."""
        decay = exact(self.decay).expand(*rows.shape[:2], -1)
        return {self.names[0]: decay if self.dim == 1 else decay[..., None].expand(*decay.shape, self.dim)}


class SignedDecaySource(Source):
    """Log and sign of tanh(a + b)."""

    def __init__(self, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(parts, stream)
        size = parts[0].size
        signs = 1.0 - 2.0 * (torch.arange(size) % 2)
        self.bias = self._constant(signs * torch.atanh((-(stream / "bias").log_uniform(1e-3, 0.1, size)).exp()))

    def forward(self, rows: Tensor, positions: Tensor | None, done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, size] -> log decay and sign, both [B, T, HV] or [B, T, HV, K]."""
        alpha = torch.tanh(self._shaped(rows) + exact(self.bias))
        sign = torch.where(alpha < 0, -1.0, 1.0).to(alpha.dtype)
        return {self.names[0]: alpha.abs().clamp_min(math.exp(LOWEST_LOG)).log(), f"{self.names[0]}_sign": sign}


MODULES: Mapping[type, type[Source]] = {
    o.Vector: VectorSource,
    o.Projection: ProjectionSource,
    o.Static: StaticSource,
    o.Sigmoid: SigmoidSource,
    o.StepSize: StepSizeSource,
    o.StepDecay: StepDecaySource,
    o.MambaDecay: MambaDecaySource,
    o.BoundedDecay: MambaDecaySource,
    o.LogSigmoid: LogSigmoidSource,
    o.FixedDecay: FixedDecaySource,
    o.SignedDecay: SignedDecaySource,
}


def source_key(parts: Sequence[Part]) -> str:
    """The name of a source in `Mixer.sources`: its operands', with a + after one that every ModuleDict has (`keys`)."""
    key = "+".join(part.name for part in parts)
    return f"{key}+" if hasattr(nn.ModuleDict(), key) else key


def source_of(parts: Sequence[Part], stream: Stream) -> Source:
    """The module that makes `parts`, which are alike."""
    return MODULES[type(parts[0].source)](parts, stream)


def inverse_softplus(x: Tensor) -> Tensor:
    """The a with softplus(a) = x > 0."""
    return x + torch.log(-torch.expm1(-x))


def log_rates(stream: Stream, low: float, high: float, heads: int) -> Tensor:
    """log A, A ~ U(low, high); A = 0 would switch the decay off for good."""
    return (stream / "A_log").uniform(low, high, heads).clamp_(min=1e-4).log()
