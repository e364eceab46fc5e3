"""Where gates of a rule come from: numbers a head, in a range or without end. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from archsearch.mixers.layer.checks import ascending, bounded, choice, need
from archsearch.mixers.layer.vector_options import (
    Linear,
    Map,
)


@dataclass(frozen=True, slots=True)
class Constant:
    """A gate that is learned and does not depend on the token: one number a head or a channel.

    bound: None is the number itself; else it is bound * sigmoid(c), in (0, bound) (QED's lambda).
    """

    start: float = 1.0
    bound: float | None = None

    def __post_init__(self) -> None:
        """Refuse a start outside the bounds."""
        bounded("constant", self.start, self.bound)


@dataclass(frozen=True, slots=True)
class Step:
    """The step size of a delta write at a key `of` that need not be unit; b = sigmoid(W x), n = k.k.

    form "kaczmarz": b / (n + eps), which no key length can overshoot (2605.08587); "implicit": b / (1 + b n), the exact
    minimiser of a quadratic (Longhorn, 2407.14207); "exact_ode": (1 - exp(-b n)) / n, the gradient flow over a unit of
    time (2512.12602). In all three 0 < step * n < 1.
    """

    of: str
    form: Literal["kaczmarz", "implicit", "exact_ode"] = "kaczmarz"
    eps: float = 1e-6
    projection: Map = Linear()

    def __post_init__(self) -> None:
        """Refuse an unknown form and an eps that does not keep the quotient finite."""
        choice("step.form", self.form, ("kaczmarz", "implicit", "exact_ode"))
        need("step.eps", self.eps, "> 0", lambda x: x > 0)


@dataclass(frozen=True, slots=True)
class Preconditioner:
    """A channel gate M = base^(-s) that slows channels which were written often: s = r / (1 + |r|),
    r = log(A + 1e-6) - c, A = exp(g) * A_(t-1) + beta k * k (2604.21100). M lies in (1 / base, base).

    key, decay, strength: the operands k, g (None: no decay) and beta. c is learned, one a head, and starts at `center`.
    The layer keeps A [HV, K] between two pieces of a sequence.
    """

    key: str
    strength: str
    decay: str | None = None
    base: float = 1.5
    center: float = -0.2

    def __post_init__(self) -> None:
        """Refuse a base that turns the meaning round."""
        need("preconditioner.base", self.base, "> 1", lambda x: x > 1)
        need("preconditioner.center", self.center, "finite", lambda x: True)


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """A gate scale * sigmoid(W x + b), in (0, scale). bias: where the learned b starts; None: no b."""

    bias: float | None = None
    scale: float = 1.0
    projection: Map = Linear()

    def __post_init__(self) -> None:
        """Refuse a scale that closes the gate."""
        need("sigmoid.scale", self.scale, "> 0", lambda x: x > 0)


@dataclass(frozen=True, slots=True)
class Exponential:
    """A gate exp(z), z = cap tanh((W x + b) / cap), b starts at `bias` (the input gate of mLSTM, 2503.13427)."""

    bias: float = -10.0
    cap: float = 15.0
    projection: Map = Linear()

    def __post_init__(self) -> None:
        """Refuse a cap that leaves no room."""
        need("exponential.cap", self.cap, "> 0", lambda x: x > 0)
        need("exponential.bias", self.bias, "finite", lambda x: True)


@dataclass(frozen=True, slots=True)
class StepSize:
    """A gate softplus(W x + dt_bias) > 0; at x = 0 log-uniform in [low, high], at least `floor` (Mamba, 2312.00752)."""

    low: float = 1e-3
    high: float = 0.1
    floor: float = 1e-4
    projection: Map = Linear()

    def __post_init__(self) -> None:
        """Refuse an empty range."""
        ascending("step_size", self.low, self.high, above=0.0)
