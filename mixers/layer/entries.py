"""Which operands leave their sources raw, and what the compiled rule makes of them: a plan's `Entry`. No tensors."""

from __future__ import annotations

from collections.abc import Sequence

from archsearch.kernels.entry import Curve, Entry, Feature, GateEntry, Norm, VectorEntry
from archsearch.mixers.layer import options as o
from archsearch.mixers.layer.plan import LayerPlan, Part


def entry_of(plan: LayerPlan) -> Entry:
    """The entry of a mixer's rule; the constants are named by operand and role, `g.bias` and `g.rate`."""
    early = _needed(plan)
    return _entry(plan, [part for part in plan.parts if part.name not in early])


def early_entry(plan: LayerPlan, parts: Sequence[Part]) -> Entry:
    """What becomes, before the rule is called, of those `parts` that the layer itself needs as the rule takes them."""
    early = _needed(plan)
    return _entry(plan, [part for part in parts if part.name in early])


def enters(plan: LayerPlan, part: Part) -> bool:
    """Whether a log decay made of a step size is made of the raw one, by the same softplus."""
    return _gate(plan, part) is not None


def _needed(plan: LayerPlan) -> set[str]:
    """Operands that are turned, delayed, added to the output, or that others are made of in a way of their own."""
    found = {plan.skipped} if plan.skipped is not None else set[str]()
    for part in plan.parts:
        if isinstance(part.source, o.Vector) and (part.source.rotary or part.source.delayed):
            found.add(part.name)
        if not enters(plan, part):
            found.update(part.origins)
    return found


def _entry(plan: LayerPlan, parts: Sequence[Part]) -> Entry:
    vectors, gates = [_vector(part) for part in parts], [_gate(plan, part) for part in parts]
    return Entry(
        tuple(vector for vector in vectors if vector is not None), tuple(gate for gate in gates if gate is not None)
    )


def _vector(part: Part) -> VectorEntry | None:
    source = part.source
    if isinstance(source, o.Vector):
        entry = VectorEntry(part.name, Feature(source.activation or "none"), Norm(source.norm or "none"))
    elif isinstance(source, o.Projection | o.Scaled):
        entry = VectorEntry(part.name, norm=Norm(source.norm or "none"))
    else:
        return None
    return None if entry == VectorEntry(part.name) else entry


def _gate(plan: LayerPlan, part: Part) -> GateEntry | None:
    bias, rate = f"{part.name}.bias", f"{part.name}.rate"
    match part.source:
        case o.Sigmoid(bias=start, scale=scale):
            return GateEntry(part.name, Curve.SIGMOID, scale, None if start is None else bias)
        case o.StepSize():
            return GateEntry(part.name, Curve.SOFTPLUS, bias=bias)
        case o.StepDecay(of=of) if any(
            other.name == of and isinstance(other.source, o.StepSize) for other in plan.parts
        ):
            return GateEntry(part.name, Curve.SOFTPLUS_DECAY, bias=f"{of}.bias", rate=rate)
        case o.MambaDecay():
            return GateEntry(part.name, Curve.SOFTPLUS_DECAY, bias=bias, rate=rate)
        case o.BoundedDecay(form=form, bound=bound):
            curve = Curve.SIGMOID_DECAY if form == "kda" else Curve.EXPONENTIAL_DECAY
            return GateEntry(part.name, curve, bound, bias, rate)
        case o.LogSigmoid(divisor=divisor):
            return GateEntry(part.name, Curve.LOG_SIGMOID, divisor)
        case _:
            return None
