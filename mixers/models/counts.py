"""Exact counts of a language model from its data alone: parameters, FLOPs a token, bytes of memory. No tensors.

FLOPs are those of the forward pass; a multiply-add is two. Counted are the matrix products, convolutions, the rule as a
token loop (`archsearch.lowering.cost`), and attention with the tokens that one sees on average, (length + 1) / 2 of
them without a window. Norms, activations, gates and the embedding's look-up are not.
"""

from __future__ import annotations

import math

from archsearch.dsl import Rule
from archsearch.lowering import lower
from archsearch.lowering.cost import Sizes as RuleSizes
from archsearch.lowering.cost import cost
from archsearch.mixers.layer import options as o
from archsearch.mixers.layer.plan import LayerPlan, Part
from archsearch.mixers.layer.planning import layer_of, plan_layer
from archsearch.mixers.models import partner_counts
from archsearch.mixers.models.options import Entry, Model

FLOAT32 = 4


def parameters(rule: Rule, model: Model, layer: o.Layer | None, vocabulary: int) -> int:
    """Trained numbers of `LanguageModel(rule, model, layer, vocabulary)`; a tied embedding counts once."""
    plan = _plan(rule, model, layer)
    width, hidden = model.width, model.mlp_width
    table = vocabulary * width
    mlp = width + 3 * width * hidden if hidden else 0
    blocks = sum(width + _mixer_parameters(entry, model, plan) + mlp for entry in model.entries)
    return table * (1 if model.tie_embeddings else 2) + blocks + width


def flops_per_token(rule: Rule, model: Model, layer: o.Layer | None, vocabulary: int, length: int) -> float:
    """Forward FLOPs a token of a sequence of `length` tokens."""
    plan = _plan(rule, model, layer)
    mlp = 6 * model.width * model.mlp_width
    mixers = sum(_mixer_flops(entry, model, plan, length) + mlp for entry in model.entries)
    return mixers + 2 * vocabulary * model.width


def state_bytes(rule: Rule, model: Model, layer: o.Layer | None, length: int = 0) -> int:
    """Bytes of one sequence's memory after `length` tokens, in float32; only that of attention grows with them."""
    plan = _plan(rule, model, layer)
    return FLOAT32 * sum(_memory(entry, model, plan, length) for entry in model.entries)


def _plan(rule: Rule, model: Model, layer: o.Layer | None) -> LayerPlan:
    return plan_layer(rule, model.width, model.heads, layer_of(rule, layer))


def _mixer_parameters(entry: Entry, model: Model, plan: LayerPlan) -> int:
    if entry != "rule":
        return partner_counts.parameters(entry, model)
    kernels = sum(channels * (size + plan.layer.conv_bias) for size, channels in plan.convolutions)
    gate = _lift_parameters(plan.gate_map, plan.sizes.value_heads, plan.sizes.value)
    skip = plan.sizes.value_heads if plan.skipped is not None else 0
    own = sum(_part_parameters(part) for part in plan.parts)
    shift = model.width * len(plan.projected) if plan.layer.token_shift else 0
    norm = plan.sizes.value if plan.layer.output_norm == "rms" else 2 * plan.outputs
    return model.width * (plan.inputs + plan.outputs) + kernels + shift + gate + skip + norm + own


def _part_parameters(part: Part) -> int:
    """Beyond the fused projection and the convolution."""
    lift = _lift_parameters(part.map, part.heads, part.dim)
    match part.source:
        case o.Projection():
            return part.heads * part.dim * part.dim
        case (
            o.Static()
            | o.StepSize()
            | o.SignedDecay()
            | o.Exponential()
            | o.CappedForget()
            | o.RampDecay()
            | o.Constant()
            | o.WeightDecay()
        ):
            return lift + part.size
        case o.Scaled(per=per):
            return part.heads if per == "head" else part.size
        case o.Preconditioner():
            return part.heads
        case o.Sigmoid(bias=bias):
            return lift + (0 if bias is None else part.size)
        case o.StepDecay():
            return part.heads
        case o.MambaDecay() | o.BoundedDecay():
            return lift + part.heads + part.size
        case _:
            return lift


def _lift_parameters(part_map: o.Map | None, heads: int, dim: int) -> int:
    if part_map is None:
        return 0
    bias = heads * dim if part_map.bias else 0
    return bias + (heads * dim * (part_map.rank or 0) if isinstance(part_map, o.LowRank) else 0)


def _mixer_flops(entry: Entry, model: Model, plan: LayerPlan, length: int) -> float:
    if entry != "rule":
        return partner_counts.flops(entry, model, length)
    sizes = plan.sizes
    lifts = sum(_lift_flops(part.map, part.heads, part.dim) for part in plan.parts)
    lifts += _lift_flops(plan.gate_map, sizes.value_heads, sizes.value)
    derived = sum(2 * part.heads * part.dim**2 for part in plan.parts if isinstance(part.source, o.Projection))
    kernels = sum(2 * size * channels for size, channels in plan.convolutions)
    rule_sizes = RuleSizes(sizes.key, sizes.value, sizes.heads, sizes.value_heads)
    recurrence = cost(lower(plan.rule), rule_sizes).recurrent_flops
    inputs = plan.inputs * (2 if plan.layer.token_shift else 1)
    return 2 * model.width * (inputs + plan.outputs) + lifts + derived + kernels + recurrence


def _lift_flops(part_map: o.Map | None, heads: int, dim: int) -> int:
    return 2 * heads * dim * (part_map.rank or 0) if isinstance(part_map, o.LowRank) else 0


def _memory(entry: Entry, model: Model, plan: LayerPlan, length: int) -> int:
    """Numbers kept of one sequence."""
    if entry != "rule":
        return partner_counts.memory(entry, model, length)
    sizes = plan.sizes
    kept = sum((size - 1) * channels for size, channels in plan.convolutions)
    kept += sum(math.prod(numbers) for numbers in plan.memories.values())
    return sizes.value_heads * sizes.key * lower(plan.rule).columns(sizes.value) + kept
