"""What a layer has of its own beside its rule: sizes, convolution, output, where each operand comes from. Data only.

Any field may hold a hole while the layer stands in a `Space`; values are checked as soon as they are plain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from archsearch.errors import ConfigError
from archsearch.holes import is_hole

Activation = Literal["none", "silu", "relu", "elu+1"]
Norm = Literal["none", "l2", "rms"]
Gate = Literal["swish", "sigmoid", "linear", "none"]
OutputNorm = Literal["rms", "group"]

ACTIVATIONS = ("none", "silu", "relu", "elu+1")
NORMS = ("none", "l2", "rms")
GATES = ("swish", "sigmoid", "linear", "none")
BENDS = ("none", "tanh", "sigmoid")


@dataclass(frozen=True, slots=True)
class Linear:
    """W x, with a bias if wanted. As the source of an operand: its kind's default source with this projection."""

    bias: bool = False


@dataclass(frozen=True, slots=True)
class LowRank:
    """W_up W_down x. As the source of an address or a value: no convolution, no activation, the default norm (EDA's e).

    rank: >= 1; None is the width of a value head, as in KDA. shared: one W_down for all heads, not one of `rank` rows a
    head. bias: on W_up. bend: what stands between the two (RWKV).
    """

    rank: int | None = 16
    shared: bool = False
    bias: bool = False
    bend: Literal["none", "tanh", "sigmoid"] = "none"

    def __post_init__(self) -> None:
        """Refuse a rank below 1 and unknown words."""
        _need("low_rank.rank", self.rank, ">= 1", lambda x: x >= 1, whole=True)
        _choice("low_rank.bend", self.bend, BENDS)


Map = Linear | LowRank


@dataclass(frozen=True, slots=True)
class Vector:
    """An address or a value: projection, causal depthwise convolution, activation, norm over the head, rotation.

    conv: kernel width in tokens, 0 is none; None is the layer's. activation: None is "silu". norm: "l2" is
    u / sqrt(u.u + 1e-6), "rms" has no weight; None is "l2" for addresses, "none" for values. rotary: an address whose
    pairs of channels turn with the position (base 10,000). delayed: that of the token before, zero at the first.
    """

    projection: Map = Linear()
    conv: int | None = None
    activation: Activation | None = None
    norm: Norm | None = None
    rotary: bool = False
    delayed: bool = False

    def __post_init__(self) -> None:
        """Refuse unknown words and a negative width."""
        _need("vector.conv", self.conv, ">= 0 (0: none)", lambda x: x >= 0, whole=True)
        _choice("vector.activation", self.activation, ACTIVATIONS)
        _choice("vector.norm", self.norm, NORMS)


@dataclass(frozen=True, slots=True)
class Projection:
    """An address P u of another address `of` (a value of a value), as that one enters the rule; P is K x K, one a head.

    `Projection(of="q")` with the default norm is an erase address derived from the query.
    """

    of: str
    norm: Norm | None = None

    def __post_init__(self) -> None:
        """Refuse unknown words."""
        _choice("projection.norm", self.norm, NORMS)


@dataclass(frozen=True, slots=True)
class Static:
    """An address or a value that is learned and does not depend on the token: one vector a head.

    start: of every channel; None is N(0, 1 / K).
    """

    norm: Norm | None = None
    start: float | None = None

    def __post_init__(self) -> None:
        """Refuse unknown words."""
        _choice("static.norm", self.norm, NORMS)
        _need("static.start", self.start, "finite", lambda x: True)


@dataclass(frozen=True, slots=True)
class Scaled:
    """An address s * u of another address `of`; s is learned, does not depend on the token and starts at `start`.

    per: one s a head, or one a channel. bounded: s = sigmoid(c), in (0, 1) (Comba's p). norm: taken after the product,
    "none" if left out: before a norm one s a head would do nothing.
    """

    of: str
    start: float = 1.0
    per: Literal["head", "channel"] = "channel"
    bounded: bool = False
    norm: Norm = "none"

    def __post_init__(self) -> None:
        """Refuse unknown words, a start outside the bounds, and a norm that makes the factor inert."""
        _choice("scaled.per", self.per, ("head", "channel"))
        _choice("scaled.norm", self.norm, NORMS)
        _bounded("scaled", self.start, 1.0 if self.bounded is True else None)
        if self.per == "head" and self.norm in ("l2", "rms"):
            raise ConfigError(
                "scaled.norm must be none where one factor scales a whole head, which a norm takes out again; "
                f"got {self.norm!r}"
            )


@dataclass(frozen=True, slots=True)
class Gated:
    """An address scale * sigmoid(W x) * u of another address `of`, channel by channel."""

    of: str
    scale: float = 1.0
    projection: Map = Linear()

    def __post_init__(self) -> None:
        """Refuse a scale that closes the gate."""
        _need("gated.scale", self.scale, "other than 0", lambda x: x != 0)


@dataclass(frozen=True, slots=True)
class Complement:
    """An address 1 - exp(g) of a log decay `of` per channel (HGRN2's key). As many value heads as heads."""

    of: str


@dataclass(frozen=True, slots=True)
class Orthogonal:
    """An address d = u - (k.u) k, u = gate * q: the part of the gated address `of` that is orthogonal to the unit
    address `to` (QED). `gate`: a channel gate. As many value heads as heads.
    """

    of: str
    to: str
    gate: str


@dataclass(frozen=True, slots=True)
class Delayed:
    """The vector `of` as it entered the rule at the token before; zero at the first (Mamba-3)."""

    of: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A gate that is learned and does not depend on the token: one number a head or a channel.

    bound: None is the number itself; else it is bound * sigmoid(c), in (0, bound) (QED's lambda).
    """

    start: float = 1.0
    bound: float | None = None

    def __post_init__(self) -> None:
        """Refuse a start outside the bounds."""
        _bounded("constant", self.start, self.bound)


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
        _choice("step.form", self.form, ("kaczmarz", "implicit", "exact_ode"))
        _need("step.eps", self.eps, "> 0", lambda x: x > 0)


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
        _need("preconditioner.base", self.base, "> 1", lambda x: x > 1)
        _need("preconditioner.center", self.center, "finite", lambda x: True)


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """A gate scale * sigmoid(W x + b), in (0, scale). bias: where the learned b starts; None: no b."""

    bias: float | None = None
    scale: float = 1.0
    projection: Map = Linear()

    def __post_init__(self) -> None:
        """Refuse a scale that closes the gate."""
        _need("sigmoid.scale", self.scale, "> 0", lambda x: x > 0)


@dataclass(frozen=True, slots=True)
class Exponential:
    """A gate exp(z), z = cap tanh((W x + b) / cap), b starts at `bias` (the input gate of mLSTM, 2503.13427)."""

    bias: float = -10.0
    cap: float = 15.0
    projection: Map = Linear()

    def __post_init__(self) -> None:
        """Refuse a cap that leaves no room."""
        _need("exponential.cap", self.cap, "> 0", lambda x: x > 0)
        _need("exponential.bias", self.bias, "finite", lambda x: True)


@dataclass(frozen=True, slots=True)
class StepSize:
    """A gate softplus(W x + dt_bias) > 0; at x = 0 log-uniform in [low, high], at least `floor` (Mamba, 2312.00752)."""

    low: float = 1e-3
    high: float = 0.1
    floor: float = 1e-4
    projection: Map = Linear()

    def __post_init__(self) -> None:
        """Refuse an empty range."""
        _range("step_size", self.low, self.high, above=0.0)


@dataclass(frozen=True, slots=True)
class StepDecay:
    """A log decay -exp(A_log) dt of the step size `of`, a gate operand (Mamba-2, 2405.21060). A ~ U(low, high)."""

    of: str
    low: float = 1.0
    high: float = 16.0

    def __post_init__(self) -> None:
        """Refuse an empty range."""
        _range("step_decay", self.low, self.high, above=-1e-12)


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
        _range("mamba_decay", self.low, self.high, above=-1e-12)


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
        _choice("bounded_decay.form", self.form, ("kda", "eda"))
        _need("bounded_decay.bound", self.bound, "< 0", lambda x: x < 0)


@dataclass(frozen=True, slots=True)
class LogSigmoid:
    """A log decay logsigmoid(W x) / divisor (GLA, 2312.06635)."""

    divisor: float = 16.0
    projection: Map | None = None

    def __post_init__(self) -> None:
        """Refuse a divisor that turns the sign."""
        _need("log_sigmoid.divisor", self.divisor, "> 0", lambda x: x > 0)


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
        _range("capped_forget", self.low, self.high, above=-1e-12)
        _need("capped_forget.cap", self.cap, "> 0", lambda x: x > 0)


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A log decay log(f), f = floor + (1 - floor) sigmoid(W x) in (floor, 1) (HGRN2, 2404.07904).

    floor: 0 in the first layer of a model and rising with depth in the paper; here one number for all layers.
    """

    floor: float = 0.0
    projection: Map | None = None

    def __post_init__(self) -> None:
        """Refuse a floor that leaves no room."""
        _need("lower_bound.floor", self.floor, "in [0, 1)", lambda x: 0 <= x < 1)


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
        _choice("ramp_decay.form", self.form, ("exp", "sigmoid"))
        _range("ramp_decay", self.low, self.high, above=-math.inf)


@dataclass(frozen=True, slots=True)
class WeightDecay:
    """A log decay log(1 - rate * eta) of the step size `of`, a gate operand, but never below log(0.01).

    rate = sigmoid(c) a head, learned, starts at `start`.
    """

    of: str
    start: float = 0.01

    def __post_init__(self) -> None:
        """Refuse a start outside (0, 1)."""
        _bounded("weight_decay", self.start, 1.0)


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


Source = (
    Linear
    | LowRank
    | Vector
    | Projection
    | Static
    | Scaled
    | Gated
    | Complement
    | Orthogonal
    | Delayed
    | Sigmoid
    | Exponential
    | StepSize
    | Constant
    | Step
    | Preconditioner
    | StepDecay
    | MambaDecay
    | BoundedDecay
    | LogSigmoid
    | CappedForget
    | LowerBound
    | RampDecay
    | WeightDecay
    | FixedDecay
    | SignedDecay
)


@dataclass(frozen=True, slots=True)
class Layer:
    """A mixer around a rule.

    head_dim: K, channels of a key head; None is width // heads. expand_v: V = expand_v * K. value_heads: a multiple of
    the heads; None is as many. conv: kernel width in tokens of the causal convolution of queries, keys and values, 0 is
    none. token_shift: every projection sees x_t + m * (x_(t-1) - x_t) in place of the token, m in R^width learned for
    each operand (RWKV). output_norm: over a head's channels, "group" is LayerNorm with a weight and a bias a channel of
    each head. output_gate: what multiplies the normalised output, of a projection `gate_projection` of the input;
    "linear" is the projection itself; with gate_first the gate comes before the norm (Mamba-2). skip: adds D v of the
    read token's value, D learned a head. norm_eps: of the output's norm. operands: sources by operand name, where the
    default of its kind is not meant.
    """

    head_dim: int | None = None
    expand_v: float = 1.0
    value_heads: int | None = None
    conv: int = 4
    conv_bias: bool = False
    token_shift: bool = False
    output_norm: OutputNorm = "rms"
    output_gate: Gate = "swish"
    gate_projection: Map = Linear()
    gate_first: bool = False
    skip: bool = False
    norm_eps: float = 1e-5
    operands: Mapping[str, Source] = field(default_factory=dict[str, Source], hash=False)

    def __post_init__(self) -> None:
        """Refuse numbers out of range and unknown words; holes pass until they are filled."""
        for name in ("head_dim", "value_heads"):
            _need(f"layer.{name}", getattr(self, name), ">= 1", lambda x: x >= 1, whole=True)
        _need("layer.expand_v", self.expand_v, "> 0", lambda x: x > 0)
        _need("layer.conv", self.conv, ">= 0 (0: none)", lambda x: x >= 0, whole=True)
        _need("layer.norm_eps", self.norm_eps, "> 0", lambda x: x > 0)
        _choice("layer.output_norm", self.output_norm, ("rms", "group"))
        _choice("layer.output_gate", self.output_gate, GATES)

    def only(self, names: Collection[str]) -> Layer:
        """Itself without the sources of operands that are not among `names`: the layer of one point of a space."""
        return replace(self, operands={name: source for name, source in self.operands.items() if name in names})

    def without_gate(self) -> Layer:
        """Itself with what says how the output's gate is made as by default: all of a layer without one."""
        return replace(self, gate_projection=Linear(), gate_first=False)


def _need(key: str, value: object, condition: str, holds: Callable[[float], bool], *, whole: bool = False) -> None:
    """A number for which `condition` holds; None and holes pass."""
    if value is None or is_hole(value):
        return
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ConfigError(f"{key} must be {'a whole number' if whole else 'a number'} {condition}; got {value!r}")
    if not (holds(value) and math.isfinite(value)):
        raise ConfigError(f"{key} must be {condition}; got {value}")


def _choice(key: str, value: object, words: tuple[str, ...]) -> None:
    if isinstance(value, str) and value not in words:
        raise ConfigError(f"{key} must be one of {', '.join(words)}; got {value!r}")


def _bounded(key: str, start: object, bound: object) -> None:
    """A start that a number inside (0, bound) can take; any finite one where there is no bound."""
    _need(f"{key}.bound", bound, "> 0", lambda x: x > 0)
    if isinstance(bound, int | float):
        _need(f"{key}.start", start, f"in (0, {bound:g})", lambda x: 0 < x < bound)
    else:
        _need(f"{key}.start", start, "finite", lambda x: True)


def _range(key: str, low: object, high: object, *, above: float) -> None:
    if isinstance(low, int | float) and isinstance(high, int | float) and not above < low < high:
        floor = {0.0: "0 < ", -math.inf: ""}.get(above, "0 <= ")
        raise ConfigError(f"{key} needs {floor}low < high; got low={low}, high={high}")
