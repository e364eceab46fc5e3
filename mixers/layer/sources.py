"""Operand sources as modules: from rows of the fused projection to the raw operands that a rule's entry takes.

Operands without an entry are made here; decays and signs among them in float32 (float64 in a float64 layer).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archsearch.kernels.entering import entered, exact, normalised
from archsearch.kernels.entry import Norm
from archsearch.mixers.layer import options as o
from archsearch.mixers.layer.entries import early_entry, enters
from archsearch.mixers.layer.history import History
from archsearch.mixers.layer.initialisation import Stream, gate_constant
from archsearch.mixers.layer.plan import LayerPlan, Part
from archsearch.mixers.layer.rotary import rotated
from archsearch.mixers.layer.shapes import as_channels, as_heads

LOWEST_LOG = -20.0
"""A signed decay is never closer to 0 than exp of this."""

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


class SigmoidSource(Source):
    """Gates scale * sigmoid(a + b)."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        start = cast(o.Sigmoid, parts[0].source).bias
        self.bias = None if start is None else self._constant(torch.full((parts[0].size,), start))

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows."""
        return self._shaped(rows)

    def constants(self) -> dict[str, Tensor]:
        """b."""
        return {} if self.bias is None else {f"{self.names[0]}.bias": self.bias}


class StepSizeSource(Source):
    """Gates softplus(a + dt_bias)."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        source = cast(o.StepSize, parts[0].source)
        steps = (stream / "dt_bias").log_uniform(source.low, source.high, parts[0].size).clamp_(min=source.floor)
        self.dt_bias = self._constant(inverse_softplus(steps))

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows."""
        return self._shaped(rows)

    def constants(self) -> dict[str, Tensor]:
        """dt_bias."""
        return {f"{self.names[0]}.bias": self.dt_bias}


class ConstantSource(Source):
    """Gates that do not depend on the token."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        source = cast(o.Constant, parts[0].source)
        self.bound = source.bound
        start = source.start if self.bound is None else math.log(source.start / (self.bound - source.start))
        self.constant = self._constant(torch.full((parts[0].size,), start))

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Nothing -> [B, T, HV] or [B, T, HV, dim]."""
        given = exact(self.constant)
        gate = given if self.bound is None else self.bound * torch.sigmoid(given)
        return {self.names[0]: gate.expand(*rows[self.names[0]].shape[:2], *gate.shape)}


class StepSource(Source):
    """Step sizes of a delta write at a key of any length."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        source = cast(o.Step, parts[0].source)
        self.of, self.form, self.eps = source.of, source.form, source.eps

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, HV] and the key [B, T, H, K] -> [B, T, HV]."""
        name = self.names[0]
        b, n = torch.sigmoid(exact(rows[name])), exact(done[self.of]).square().sum(-1)
        n = n.repeat_interleave(self.heads // n.shape[2], dim=2)
        return {name: step_size(b, n, self.form, self.eps)}


class PreconditionerSource(Source):
    """M = base^(-s) of a decayed sum of what was written to each channel."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        source = cast(o.Preconditioner, parts[0].source)
        self.key, self.strength, self.decay, self.base = source.key, source.strength, source.decay, source.base
        self.center = gate_constant(torch.full((self.heads,), source.center))

    def forward(
        self,
        rows: Mapping[str, Tensor],
        positions: Tensor | None,
        done: Mapping[str, Tensor],
        history: History = NOTHING_BEFORE,
    ) -> dict[str, Tensor]:
        """Key [B, T, H, K], strength and decay -> [B, T, HV, K]."""
        name = self.names[0]
        decay = None if self.decay is None else done[self.decay]
        written = history.decayed_sum(name, decay, self.raw(rows, done)[name])
        r = torch.log(written + 1e-6) - exact(self.center)[:, None]
        return {name: self.base ** (-r / (1 + r.abs()))}

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """beta k * k, what is summed: [B, T, HV, K]."""
        key = exact(done[self.key]).square()
        key = key.repeat_interleave(self.heads // key.shape[2], dim=2)
        return {self.names[0]: done[self.strength][..., None] * key}


class StepDecaySource(Source):
    """Log decays -exp(A_log) dt; of a raw step size where the entry makes both of it."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        source = cast(o.StepDecay, parts[0].source)
        self.of, self.enters = source.of, enters(plan, parts[0])
        self.A_log = gate_constant(log_rates(stream, source.low, source.high, self.heads))

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The step size [B, T, HV] -> [B, T, HV]."""
        step = done[self.of]
        return {self.names[0]: step if self.enters else -exact(self.A_log).exp() * step}

    def constants(self) -> dict[str, Tensor]:
        """A_log."""
        return {f"{self.names[0]}.rate": self.A_log} if self.enters else {}


class MambaDecaySource(Source):
    """Log decays -exp(A_log) softplus(a + dt_bias), or one of their bounded forms."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        match parts[0].source:
            case o.MambaDecay(low=low, high=high):
                rates = log_rates(stream, low, high, self.heads)
            case o.BoundedDecay(form="eda"):
                rates = log_rates(stream, 1.0, 16.0, self.heads)
            case _:
                rates = torch.zeros(self.heads)
        self.A_log = gate_constant(rates)
        steps = (stream / "dt_bias").log_uniform(1e-3, 0.1, parts[0].size).clamp_(min=1e-4)
        self.dt_bias = self._constant(inverse_softplus(steps))

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows."""
        return self._shaped(rows)

    def constants(self) -> dict[str, Tensor]:
        """dt_bias and A_log."""
        return {f"{self.names[0]}.bias": self.dt_bias, f"{self.names[0]}.rate": self.A_log}


class LogSigmoidSource(Source):
    """Log decays logsigmoid(a) / divisor."""

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows."""
        return self._shaped(rows)


class CappedSource(Source):
    """Gates exp(z) or log decays logsigmoid(z), z = cap tanh((a + b) / cap)."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        self.source = cast("o.Exponential | o.CappedForget", parts[0].source)
        match self.source:
            case o.Exponential(bias=bias):
                low, high = bias, bias
            case o.CappedForget(low=low, high=high):
                pass
        self.bias = self._constant(torch.linspace(low, high, parts[0].size))

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows -> gates or log decays, of the same shape."""
        cap, name = self.source.cap, self.names[0]
        z = cap * torch.tanh((exact(self._shaped(rows)[name]) + exact(self.bias)) / cap)
        return {name: z.exp() if isinstance(self.source, o.Exponential) else F.logsigmoid(z)}


class LowerBoundSource(Source):
    """Log decays log(floor + (1 - floor) sigmoid(a))."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        self.floor = cast(o.LowerBound, parts[0].source).floor

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, size] -> [B, T, HV] or [B, T, HV, K]."""
        name, log = self.names[0], F.logsigmoid(exact(self._shaped(rows)[self.names[0]]))
        return {name: log if self.floor == 0 else torch.log(self.floor + (1 - self.floor) * log.exp())}


class RampDecaySource(Source):
    """Log decays of z = a + b, b rising over the channels."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        source = cast(o.RampDecay, parts[0].source)
        self.form = source.form
        self.bias = self._constant(torch.linspace(source.low, source.high, parts[0].size))

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, size] -> [B, T, HV] or [B, T, HV, K]."""
        z = exact(self._shaped(rows)[self.names[0]]) + exact(self.bias)
        return {self.names[0]: -z.exp() if self.form == "exp" else -math.exp(-0.5) * torch.sigmoid(z)}


class WeightDecaySource(Source):
    """Log decays log(1 - rate * eta)."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        source = cast(o.WeightDecay, parts[0].source)
        self.of = source.of
        self.rate = self._constant(torch.full((parts[0].size,), math.log(source.start / (1 - source.start))))

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The step size [B, T, HV] -> [B, T, HV]."""
        shrunk = torch.sigmoid(exact(self.rate)) * done[self.of]
        return {self.names[0]: torch.log1p(-shrunk.clamp_max(0.99))}


class FixedDecaySource(Source):
    """Log decays log(1 - 2^(-5-h)) of head h."""

    decay: Tensor

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        heads = torch.arange(self.heads, dtype=torch.float64)
        self.register_buffer("decay", torch.log1p(-(2.0 ** (-5 - heads))).float(), persistent=False)

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Nothing -> [B, T, HV] or [B, T, HV, K]."""
        decay = exact(self.decay).expand(*rows[self.names[0]].shape[:2], -1)
        return {self.names[0]: decay if self.dim == 1 else decay[..., None].expand(*decay.shape, self.dim)}


class SignedDecaySource(Source):
    """Log and sign of tanh(a + b)."""

    def __init__(self, plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> None:
        super().__init__(plan, parts, stream)
        size = parts[0].size
        signs = 1.0 - 2.0 * (torch.arange(size) % 2)
        self.bias = self._constant(signs * torch.atanh((-(stream / "bias").log_uniform(1e-3, 0.1, size)).exp()))

    def raw(self, rows: Mapping[str, Tensor], done: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, T, size] -> log decay and sign, both [B, T, HV] or [B, T, HV, K]."""
        name = self.names[0]
        alpha = torch.tanh(exact(self._shaped(rows)[name]) + exact(self.bias))
        sign = torch.where(alpha < 0, -1.0, 1.0).to(alpha.dtype)
        return {name: alpha.abs().clamp_min(math.exp(LOWEST_LOG)).log(), f"{name}_sign": sign}


MODULES: Mapping[type, type[Source]] = {
    o.Vector: VectorSource,
    o.Projection: ProjectionSource,
    o.Static: StaticSource,
    o.Scaled: ScaledSource,
    o.Gated: GatedSource,
    o.Complement: ComplementSource,
    o.Orthogonal: OrthogonalSource,
    o.Delayed: DelayedSource,
    o.Sigmoid: SigmoidSource,
    o.Exponential: CappedSource,
    o.StepSize: StepSizeSource,
    o.Constant: ConstantSource,
    o.Step: StepSource,
    o.Preconditioner: PreconditionerSource,
    o.StepDecay: StepDecaySource,
    o.MambaDecay: MambaDecaySource,
    o.BoundedDecay: MambaDecaySource,
    o.LogSigmoid: LogSigmoidSource,
    o.CappedForget: CappedSource,
    o.LowerBound: LowerBoundSource,
    o.RampDecay: RampDecaySource,
    o.WeightDecay: WeightDecaySource,
    o.FixedDecay: FixedDecaySource,
    o.SignedDecay: SignedDecaySource,
}


def source_key(parts: Sequence[Part]) -> str:
    """The name of a source in `Mixer.sources`: its operands', with a + after one that every ModuleDict has (`keys`)."""
    key = "+".join(part.name for part in parts)
    return f"{key}+" if hasattr(nn.ModuleDict(), key) else key


def source_of(plan: LayerPlan, parts: Sequence[Part], stream: Stream) -> Source:
    """The module that makes `parts` of a plan, which are alike."""
    return MODULES[type(parts[0].source)](plan, parts, stream)


def step_size(b: Tensor, n: Tensor, form: str, eps: float) -> Tensor:
    """The step of each form of `options.Step` for b in (0, 1) and n = k.k >= 0, [B, T, HV] both."""
    match form:
        case "kaczmarz":
            return b / (n + eps)
        case "implicit":
            return b / (1 + b * n)
        case _:
            n = n.clamp_min(eps)
            return -torch.expm1(-b * n) / n


def inverse_softplus(x: Tensor) -> Tensor:
    """The a with softplus(a) = x > 0."""
    return x + torch.log(-torch.expm1(-x))


def log_rates(stream: Stream, low: float, high: float, heads: int) -> Tensor:
    """log A, A ~ U(low, high); A = 0 would switch the decay off for good."""
    return (stream / "A_log").uniform(low, high, heads).clamp_(min=1e-4).log()
