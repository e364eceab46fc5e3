"""How tokens are cut, batched, packed, padded or taken one at a time changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from archsearch.dsl import Kind
from archsearch.kernels.conformance.inputs import Inputs, smooth
from archsearch.kernels.conformance.sensitivity import agreeing
from archsearch.kernels.conformance.setting import Outcome, Setting, compare, differentiate, forward
from archsearch.kernels.conformance.verdict import Verdict, worst

STEPS = 5
"""Tokens that are decoded one by one after a prefix."""


def pieces_equal_whole(setting: Setting) -> Verdict:
    """Cut inside chunks, with an empty piece, the state handed over."""
    name, inputs, chunk = "pieces_equal_whole", setting.inputs(), setting.chunk_sizes[0]
    cuts = [0, 1, chunk + 2, chunk + 2, setting.shape.tokens]
    state, outputs = inputs.initial_state, list[Tensor]()
    for start, end in pairwise(cuts):
        piece = forward(setting.compiled(), replace(inputs.tokens(start, end), initial_state=state))
        outputs.append(piece.output)
        state = piece.state
    found = Outcome(torch.cat(outputs, dim=1), state, {})
    return worst(name, agreeing(setting, name, found, inputs, f"cut at {cuts[1:-1]}"))


def steps_equal_whole(setting: Setting) -> Verdict:
    """A prefix in chunks, then token by token with `step`."""
    name, prefix = "steps_equal_whole", setting.chunk_sizes[0] + 1
    inputs = setting.inputs().tokens(0, prefix + STEPS)
    begun = forward(setting.compiled(), inputs.tokens(0, prefix))
    state, outputs = begun.state, [begun.output]
    with torch.no_grad():
        for t in range(prefix, prefix + STEPS):
            token = {operand: tensor[:, t] for operand, tensor in inputs.tensors.items()}
            output, state = setting.compiled().step(state=state, scale=None, **token)
            outputs.append(output[:, None])
    found = Outcome(torch.cat(outputs, dim=1), state, {})
    return worst(name, agreeing(setting, name, found, inputs, f"{STEPS} steps after {prefix} tokens"))


def result_does_not_depend_on_the_batch(setting: Setting) -> Verdict:
    """Each row alone gives what it gives beside the others."""
    name, inputs = "result_does_not_depend_on_the_batch", setting.inputs()
    together = forward(setting.compiled(), inputs)
    verdicts: list[Verdict] = []
    for row in range(setting.shape.batch):
        alone = forward(setting.compiled(), inputs.rows(row, row + 1))
        expected = Outcome(together.output[row : row + 1], together.state[row : row + 1], {})
        verdicts += compare(setting, name, alone, expected, f"row {row}")
    return worst(name, verdicts)


def packed_equals_separate(setting: Setting) -> Verdict:
    """Sequences packed with cu_seqlens, empty ones among them, give their own values and gradients."""
    name, chunk = "packed_equals_separate", setting.chunk_sizes[0]
    lengths = [0, chunk + 3, 1, 0, 2 * chunk, 0]
    ends = list(pairwise(accumulate(lengths, initial=0)))
    packed = setting.inputs(replace(setting.shape, batch=1, tokens=sum(lengths)))
    states = setting.inputs(replace(setting.shape, batch=len(lengths), tokens=1))
    pieces = [
        smooth(
            setting.form,
            replace(
                packed.tokens(start, end),
                initial_state=states.initial_state[n : n + 1],
                state_slope=states.state_slope[n : n + 1],
            ),
        )
        for n, (start, end) in enumerate(ends)
    ]
    slopes = torch.cat([piece.output_slope for piece in pieces], dim=1)
    inputs = replace(packed, initial_state=states.initial_state, state_slope=states.state_slope, output_slope=slopes)
    offsets = torch.tensor([0, *lengths], device=setting.device).cumsum(0)
    found = differentiate(setting.compiled(), inputs, cu_seqlens=offsets)
    verdicts: list[Verdict] = []
    for n, (start, end) in enumerate(ends):
        cut = _cut(found, start, end, slice(n, n + 1))
        verdicts += agreeing(setting, name, cut, pieces[n], f"sequence {n} of lengths {lengths}")
    return worst(name, verdicts)


def _cut(found: Outcome, start: int, end: int, own: slice) -> Outcome:
    """The part of a packed outcome that belongs to one sequence."""
    gradients = {
        name: gradient[own] if name == "initial_state" else gradient[:, start:end]
        for name, gradient in found.gradients.items()
    }
    return Outcome(found.output[:, start:end], found.state[own], gradients)


def value_heads_share_keys(setting: Setting) -> Verdict:
    """With more value heads than key heads, value head j uses key head j // (HV / H): heads of the setting where it has
    several that are shared, since kernels are made for a number of heads; else 2 and 6.
    """
    name, shape = "value_heads_share_keys", replace(setting.shape, tokens=setting.chunk_sizes[0] + 2)
    if not 1 < shape.heads < shape.value_heads:
        shape = replace(shape, heads=2, value_heads=6)
    inputs, group = setting.inputs(shape), shape.value_heads // shape.heads
    addresses = {operand.name for operand in setting.form.operands if operand.is_address}
    heads = [j // group for j in range(shape.value_heads)]
    spread = inputs.mapped(lambda operand, tensor: tensor[:, :, heads] if operand in addresses else tensor)
    found = forward(setting.compiled(), inputs)
    return worst(name, agreeing(setting, name, found, spread, f"HV = {group} H"))


def padding_never_leaks(setting: Setting) -> Verdict:
    """Tokens of zeros before and after, whose log decay is 0, change neither outputs nor state, nor do they where rows
    of a batch differ in length. A rule that decays by a number decays them too.
    """
    name, pad = "padding_never_leaks", setting.chunk_sizes[0] // 2 + 1
    if any(isinstance(decay.log_decay, float) for decay in setting.form.decays):
        return Verdict(name, 0.0, 0.0, "the rule decays by a number: no token of zeros is neutral")
    inputs = setting.inputs()
    signs = {operand.name for operand in setting.form.operands if operand.kind is Kind.SIGN}
    spans = [(pad + row, pad + setting.shape.tokens - 2 * row) for row in range(setting.shape.batch)]
    rows = [inputs.rows(row, row + 1).tokens(0, end - start) for row, (start, end) in enumerate(spans)]
    whole = setting.shape.tokens + 2 * pad
    padded = [
        replace(
            row.mapped(_padded(start, whole - end, signs)),
            output_slope=torch.nn.functional.pad(row.output_slope, (0, 0, 0, 0, start, whole - end)),
        )
        for row, (start, end) in zip(rows, spans, strict=True)
    ]
    found = differentiate(setting.compiled(), _stacked(padded))
    verdicts: list[Verdict] = []
    for row, (start, end) in enumerate(spans):
        alone = Outcome(
            found.output[row : row + 1],
            found.state[row : row + 1],
            {operand: gradient[row : row + 1] for operand, gradient in found.gradients.items()},
        )
        cut, where = _cut(alone, start, end, slice(None)), f"row {row}: {start} tokens before, {whole - end} after"
        verdicts += agreeing(setting, name, cut, rows[row], where)
    return worst(name, verdicts)


def _padded(before: int, after: int, signs: set[str]) -> Callable[[str, Tensor], Tensor]:
    def padded(operand: str, tensor: Tensor) -> Tensor:
        neutral = 1.0 if operand in signs else 0.0
        fillers = [tensor.new_full((tensor.shape[0], pad, *tensor.shape[2:]), neutral) for pad in (before, after)]
        return torch.cat([fillers[0], tensor, fillers[1]], dim=1)

    return padded


def _stacked(rows: Sequence[Inputs]) -> Inputs:
    """Rows of a batch put together."""
    parts = ("initial_state", "output_slope", "state_slope")
    tensors = {name: torch.cat([row.tensors[name] for row in rows]) for name in rows[0].tensors}
    return Inputs(tensors, *(torch.cat([getattr(row, part) for row in rows]) for part in parts))


def without_slopes_after(inputs: Inputs, end: int) -> Inputs:
    """The loss sees outputs of tokens before `end` alone."""
    slope = inputs.output_slope.clone()
    slope[:, end:] = 0
    return replace(inputs, output_slope=slope, state_slope=torch.zeros_like(inputs.state_slope))
