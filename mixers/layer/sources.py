"""Operand sources as modules: from rows of the fused projection to the raw operands that a rule's entry takes.

Operands without an entry are made here; decays and signs among them in float32 (float64 in a float64 layer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from archsearch.mixers.layer import options as o
from archsearch.mixers.layer.decay_sources import (
    FixedDecaySource,
    LogSigmoidSource,
    LowerBoundSource,
    MambaDecaySource,
    RampDecaySource,
    SignedDecaySource,
    StepDecaySource,
    WeightDecaySource,
)
from archsearch.mixers.layer.gate_sources import (
    CappedSource,
    ConstantSource,
    PreconditionerSource,
    SigmoidSource,
    StepSizeSource,
    StepSource,
)
from archsearch.mixers.layer.initialisation import Stream
from archsearch.mixers.layer.plan import LayerPlan, Part
from archsearch.mixers.layer.source import Source
from archsearch.mixers.layer.vector_sources import (
    ComplementSource,
    DelayedSource,
    GatedSource,
    OrthogonalSource,
    ProjectionSource,
    ScaledSource,
    StaticSource,
    VectorSource,
)

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
