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
Gate = Literal["swish", "sigmoid", "none"]

ACTIVATIONS = ("none", "silu", "relu", "elu+1")
NORMS = ("none", "l2", "rms")
GATES = ("swish", "sigmoid", "none")


@dataclass(frozen=True, slots=True)
class Linear:
    """W x, with a bias if wanted. As the source of an operand: its kind's default source with this projection."""

    bias: bool = False


@dataclass(frozen=True, slots=True)
class LowRank:
    """W_up W_down x. As the source of an address or a value: no convolution, no activation, the default norm (EDA's e).

    rank: >= 1; None is the width of a value head, as in KDA. shared: one W_down for all heads, not one of `rank` rows a
    head. bias: on W_up.
    """

    rank: int | None = 16
    shared: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        """Refuse a rank below 1."""
        _need("low_rank.rank", self.rank, ">= 1", lambda x: x >= 1, whole=True)


Map = Linear | LowRank


@dataclass(frozen=True, slots=True)
class Vector:
    """An address or a value: projection, causal depthwise convolution, activation, norm over the head, rotation.

    conv: kernel width in tokens, 0 is none; None is the layer's. activation: None is "silu". norm: "l2" is
    u / sqrt(u.u + 1e-6), "rms" has no weight; None is "l2" for addresses, "none" for values. rotary: an address whose
    pairs of channels turn with the position (base 10,000).
    """

    projection: Map = Linear()
    conv: int | None = None
    activation: Activation | None = None
    norm: Norm | None = None
    rotary: bool = False

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
    """An address or a value that is learned and does not depend on the token: one vector a head."""

    norm: Norm | None = None

    def __post_init__(self) -> None:
        """Refuse unknown words."""
        _choice("static.norm", self.norm, NORMS)


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
    | Sigmoid
    | Exponential
    | StepSize
    | StepDecay
    | MambaDecay
    | BoundedDecay
    | LogSigmoid
    | CappedForget
    | FixedDecay
    | SignedDecay
)


@dataclass(frozen=True, slots=True)
class Layer:
    """A mixer around a rule.

    head_dim: K, channels of a key head; None is width // heads. expand_v: V = expand_v * K. value_heads: a multiple of
    the heads; None is as many. conv: kernel width in tokens of the causal convolution of queries, keys and values, 0 is
    none. output_gate: what multiplies the normalised output, of a projection `gate_projection` of the input; with
    gate_first the gate comes before the norm (Mamba-2). skip: adds D v of the read token's value, D learned a head.
    norm_eps: of the output's RMSNorm. operands: sources by operand name, where the default of its kind is not meant.
    """

    head_dim: int | None = None
    expand_v: float = 1.0
    value_heads: int | None = None
    conv: int = 4
    conv_bias: bool = False
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
        _choice("layer.output_gate", self.output_gate, GATES)

    def only(self, names: Collection[str]) -> Layer:
        """Itself without the sources of operands that are not among `names`: the layer of one point of a space."""
        return replace(self, operands={name: source for name, source in self.operands.items() if name in names})


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


def _range(key: str, low: object, high: object, *, above: float) -> None:
    if isinstance(low, int | float) and isinstance(high, int | float) and not above < low < high:
        raise ConfigError(f"{key} needs {'0 <' if above == 0 else '0 <='} low < high; got low={low}, high={high}")
