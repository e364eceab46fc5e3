"""What a layer has of its own beside its rule: sizes, convolution, output, where each operand comes from. Data only.

Any field may hold a hole while the layer stands in a `Space`; values are checked as soon as they are plain.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from archsearch.holes import is_hole
from archsearch.mixers.layer.checks import LARGEST_RATIO, choice, need
from archsearch.mixers.layer.decay_options import (
    BoundedDecay,
    CappedForget,
    FixedDecay,
    LogSigmoid,
    LowerBound,
    MambaDecay,
    RampDecay,
    SignedDecay,
    StepDecay,
    WeightDecay,
)
from archsearch.mixers.layer.gate_options import Constant, Exponential, Preconditioner, Sigmoid, Step, StepSize
from archsearch.mixers.layer.vector_options import (
    Complement,
    Delayed,
    Gated,
    Linear,
    LowRank,
    Map,
    Orthogonal,
    Projection,
    Scaled,
    Static,
    Vector,
)
from archsearch.typed_data import check_fields

Gate = Literal["swish", "sigmoid", "linear", "none"]


OutputNorm = Literal["rms", "group"]


GATES = ("swish", "sigmoid", "linear", "none")


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
            need(f"layer.{name}", getattr(self, name), ">= 1", lambda x: x >= 1, whole=True)
        need("layer.expand_v", self.expand_v, "> 0", lambda x: x > 0, most=LARGEST_RATIO)
        need("layer.conv", self.conv, ">= 0 (0: none)", lambda x: x >= 0, whole=True)
        need("layer.norm_eps", self.norm_eps, "> 0", lambda x: x > 0)
        choice("layer.output_norm", self.output_norm, ("rms", "group"))
        choice("layer.output_gate", self.output_gate, GATES)
        check_fields(self, "layer", is_hole)

    def only(self, names: Collection[str]) -> Layer:
        """Itself without the sources of operands that are not among `names`: the layer of one point of a space."""
        return replace(self, operands={name: source for name, source in self.operands.items() if name in names})

    def without_gate(self) -> Layer:
        """Itself with what says how the output's gate is made as by default: all of a layer without one."""
        return replace(self, gate_projection=Linear(), gate_first=False)
