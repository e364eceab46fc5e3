"""Gates of a rule as modules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from archsearch.kernels.entering import exact
from archsearch.mixers.layer import options as o
from archsearch.mixers.layer.history import History
from archsearch.mixers.layer.initialisation import Stream, gate_constant, inverse_softplus
from archsearch.mixers.layer.plan import LayerPlan, Part
from archsearch.mixers.layer.source import NOTHING_BEFORE, Source


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
