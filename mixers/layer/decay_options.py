"""Where log decays of a rule come from, and the signs of signed ones. Data only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from archsearch.mixers.layer.checks import ascending, bounded, choice, need
from archsearch.mixers.layer.vector_options import (
    Map,
)


@dataclass(frozen=True, slots=True)
class StepDecay:
    """A log decay -exp(A_log) dt of the step size `of`, a gate operand (Mamba-2, 2405.21060). A ~ U(low, high)."""

    of: str
    low: float = 1.0
    high: float = 16.0

    def __post_init__(self) -> None:
        """Refuse an empty range."""
        ascending("step_decay", self.low, self.high, above=-1e-12)


@dataclass(frozen=True, slots=True)
class MambaDecay:
    """A log decay -exp(A_log) softplus(W x + dt_bias).

    A starts as U(low, high), one a head, and softplus(dt_bias) log-uniform in [1e-3, 0.1], one a number of the decay.
    projection: None is linear for a decay per head and `LowRank(None, shared=True)` for one per channel (KDA).
    """

    low: float = 0.0
    high: float = 16.0
    projection: Map | None = None

    def __post_init__(self) -> None:
        """Refuse an empty range."""
        ascending("mamba_decay", self.low, self.high, above=-1e-12)


@dataclass(frozen=True, slots=True)
class BoundedDecay:
    """A log decay in (bound, 0), with the constants A_log and dt_bias of `MambaDecay`.

    form "kda": bound * sigmoid(exp(A_log) (W x + dt_bias)), A starts at 1 (2510.26692). form "eda":
    bound * (1 - exp(-exp(A_log) / abs(bound) * softplus(W x + dt_bias))), A ~ U(1, 16) (2606.26560, Eq. 15).
    """

    form: Literal["kda", "eda"] = "kda"
    bound: float = -5.0
    projection: Map | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown form and a bound that is no bound."""
        choice("bounded_decay.form", self.form, ("kda", "eda"))
        need("bounded_decay.bound", self.bound, "< 0", lambda x: x < 0)


@dataclass(frozen=True, slots=True)
class LogSigmoid:
    """A log decay logsigmoid(W x) / divisor (GLA, 2312.06635)."""

    divisor: float = 16.0
    projection: Map | None = None

    def __post_init__(self) -> None:
        """Refuse a divisor that turns the sign."""
        need("log_sigmoid.divisor", self.divisor, "> 0", lambda x: x > 0)


@dataclass(frozen=True, slots=True)
class CappedForget:
    """A log decay logsigmoid(z), z = cap tanh((W x + b) / cap) (the forget gate of mLSTM, 2503.13427).

    b starts evenly spaced from `low` to `high` over the heads, or over the channels of all of them.
    """

    low: float = 3.0
    high: float = 6.0
    cap: float = 15.0
    projection: Map | None = None

    def __post_init__(self) -> None:
        """Refuse an empty range and a cap that leaves no room."""
        ascending("capped_forget", self.low, self.high, above=-1e-12)
        need("capped_forget.cap", self.cap, "> 0", lambda x: x > 0)


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A log decay log(f), f = floor + (1 - floor) sigmoid(W x) in (floor, 1) (HGRN2, 2404.07904).

    floor: 0 in the first layer of a model and rising with depth in the paper; here one number for all layers.
    """

    floor: float = 0.0
    projection: Map | None = None

    def __post_init__(self) -> None:
        """Refuse a floor that leaves no room."""
        need("lower_bound.floor", self.floor, "in [0, 1)", lambda x: 0 <= x < 1)


@dataclass(frozen=True, slots=True)
class RampDecay:
    """A log decay of z = W x + b, b rising evenly from `low` to `high` over the channels of all heads.

    form "exp": -exp(z), unbounded (RWKV-6, 2404.05892). form "sigmoid": -exp(-1/2) sigmoid(z), so that a channel keeps
    more than 0.545 (RWKV-7, 2503.14456).
    """

    form: Literal["exp", "sigmoid"] = "exp"
    low: float = -6.0
    high: float = -1.0
    projection: Map | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown form and an empty range."""
        choice("ramp_decay.form", self.form, ("exp", "sigmoid"))
        ascending("ramp_decay", self.low, self.high, above=-math.inf)


@dataclass(frozen=True, slots=True)
class WeightDecay:
    """A log decay log(1 - rate * eta) of the step size `of`, a gate operand, but never below log(0.01).

    rate = sigmoid(c) a head, learned, starts at `start`.
    """

    of: str
    start: float = 0.01

    def __post_init__(self) -> None:
        """Refuse a start outside (0, 1)."""
        bounded("weight_decay", self.start, 1.0)


@dataclass(frozen=True, slots=True)
class FixedDecay:
    """A log decay log(1 - 2^(-5-h)) of head h = 0, 1, ..., nothing learned (RetNet, 2307.08621)."""


@dataclass(frozen=True, slots=True)
class SignedDecay:
    """Log and sign of alpha = tanh(W x + b) in (-1, 1), for a signed log decay and its sign at once.

    b starts at alpha = +-exp(-dt), dt log-uniform in [1e-3, 0.1], signs alternating. d alpha / d a is exact although a
    sign carries no gradient: alpha = sign * exp(log), and the sign is constant around a.
    """

    projection: Map | None = None
