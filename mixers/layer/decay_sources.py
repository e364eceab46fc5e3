"""Log decays of a rule as modules, in float32 (float64 in a float64 layer)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from archsearch.kernels.entering import exact
from archsearch.mixers.layer import options as o
from archsearch.mixers.layer.entries import enters
from archsearch.mixers.layer.initialisation import Stream, gate_constant, inverse_softplus, log_rates
from archsearch.mixers.layer.plan import LayerPlan, Part
from archsearch.mixers.layer.source import Source

LOWEST_LOG = -20.0
"""A signed decay is never closer to 0 than exp of this."""


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
