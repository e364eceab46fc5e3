"""Where vectors of a rule come from: maps of the input, or vectors made of others. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from archsearch.errors import ConfigError
from archsearch.mixers.layer.checks import bounded, choice, need

Activation = Literal["none", "silu", "relu", "elu+1"]


Norm = Literal["none", "l2", "rms"]


ACTIVATIONS = ("none", "silu", "relu", "elu+1")


NORMS = ("none", "l2", "rms")


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
        need("low_rank.rank", self.rank, ">= 1", lambda x: x >= 1, whole=True)
        choice("low_rank.bend", self.bend, BENDS)


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
        need("vector.conv", self.conv, ">= 0 (0: none)", lambda x: x >= 0, whole=True)
        choice("vector.activation", self.activation, ACTIVATIONS)
        choice("vector.norm", self.norm, NORMS)


@dataclass(frozen=True, slots=True)
class Projection:
    """An address P u of another address `of` (a value of a value), as that one enters the rule; P is K x K, one a head.

    `Projection(of="q")` with the default norm is an erase address derived from the query.
    """

    of: str
    norm: Norm | None = None

    def __post_init__(self) -> None:
        """Refuse unknown words."""
        choice("projection.norm", self.norm, NORMS)


@dataclass(frozen=True, slots=True)
class Static:
    """An address or a value that is learned and does not depend on the token: one vector a head.

    start: of every channel; None is N(0, 1 / K).
    """

    norm: Norm | None = None
    start: float | None = None

    def __post_init__(self) -> None:
        """Refuse unknown words."""
        choice("static.norm", self.norm, NORMS)
        need("static.start", self.start, "finite", lambda x: True)


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
        choice("scaled.per", self.per, ("head", "channel"))
        choice("scaled.norm", self.norm, NORMS)
        bounded("scaled", self.start, 1.0 if self.bounded is True else None)
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
        need("gated.scale", self.scale, "other than 0", lambda x: x != 0)


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
