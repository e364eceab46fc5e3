"""The low-memory mode: a call's tokens in a few stretches, one after another.

Forward keeps nothing but the states between stretches. The backward takes the stretches from the last to the first and
computes what it needs of one again, so that states, their gradients, T, P and D exist of one stretch at a time:
output and gradients apart, what a call holds at once is a fourth of what one whole pass would. A stretch ends with a
chunk, so both modes compute the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from archsearch.kernels.triton import ahead, gradient_launch, serial_launch
from archsearch.kernels.triton.launch import (
    Gradients,
    brought,
    forward_program,
    laid_out,
    new_results,
    new_state,
    new_targets,
    rooms_of,
    solving_steps,
)
from archsearch.kernels.triton.plan import Serial, plan
from archsearch.kernels.triton.program import Program
from archsearch.kernels.triton.setup import Setup, Sizes, buffers_of, packed_chunks

STRETCHES = 4
"""At most. Each adds its launches, and what it does not share with others is already less than the gradients."""


class Stretches(NamedTuple):
    """Of one kind of call: `number` stretches of `tokens` of T, and the setup of one, over all tokens side by side."""

    number: int
    tokens: int
    setup: Setup


class Tables(NamedTuple):
    """Of every stretch: its chunks' first tokens and ends [chunks, 2], and the chunks before each sequence."""

    chunks: list[Tensor]
    offsets: list[Tensor]


def stretches_of(setup: Setup) -> Stretches:
    """How a call of this setup is taken apart."""
    # Sizes that a compiler has left open cannot be a key.
    open_sizes = any(isinstance(size, torch.SymInt) for size in setup.sizes)
    return cut_up.__wrapped__(setup) if open_sizes else cut_up(setup)


@lru_cache(maxsize=1024)
def cut_up(setup: Setup) -> Stretches:
    """As `stretches_of`, remembered."""
    sizes, chunk = setup.sizes, setup.use.chunk
    each = max(1, -(-setup.each // STRETCHES))
    use = plan(replace(setup.problem, tokens=each * chunk), chunk)
    use = replace(use, scan=_plain(use.scan), reverse=_plain(use.reverse), pieces=_plain(use.pieces))
    count = each + sizes.sequences if setup.packed else each * sizes.batch
    flat = Sizes(1, sizes.batch * sizes.tokens, *sizes[2:])
    one = replace(
        setup,
        sizes=flat,
        use=use,
        packed=True,
        count=count,
        each=each,
        shapes=tuple((1, sizes.batch * sizes.tokens, *shape[2:]) for shape in setup.shapes),
        buffers=buffers_of(setup.facts, flat, use, count),
    )
    return Stretches(max(1, -(-setup.each // each)), each * chunk, one)


def _plain(serial: Serial) -> Serial:
    """Without descriptors, whose tiles would reach into the next sequence."""
    return replace(serial, descriptors=False)


def new_between(setup: Setup) -> Tensor:
    """Room for the states between stretches [stretches - 1, sequences, HV, K, V]."""
    shape = (stretches_of(setup).number - 1, *setup.state.shape)
    return torch.empty(shape, dtype=setup.state.dtype, device=setup.device)


def forward(
    setup: Setup, tensors: Sequence[Tensor], initial: Tensor | None, cu_seqlens: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Output and final state as of `launch.forward`, and the states between stretches."""
    cut, flat = stretches_of(setup), _side_by_side(tensors)
    program = forward_program(cut.setup, keep=False, initial=True)
    ahead.prepare([program], setup.device)
    output, state = new_results(setup)
    between, rooms = new_between(setup), [memory.new(setup.device) for memory in program.memories]
    tables = _tables(setup, cu_seqlens)
    entering = torch.zeros_like(state) if initial is None else laid_out(initial)
    whole = output.view(1, -1, *output.shape[2:])
    for at in range(cut.number):
        leaving = state if at == cut.number - 1 else between[at]
        program(scale, (*flat, tables.chunks[at], tables.offsets[at], entering, whole, leaving), rooms)
        entering = leaving
    return output, state, between


def backward(
    setup: Setup,
    tensors: Sequence[Tensor],
    initial: Tensor | None,
    cu_seqlens: Tensor | None,
    between: Tensor,
    d_output: Tensor,
    d_state: Tensor | None,
    scale: float,
) -> Gradients:
    """As `launch.backward`, from the states between stretches."""
    cut, flat = stretches_of(setup), _side_by_side(tensors)
    program = _backward(cut.setup)
    ahead.prepare([program], setup.device)
    targets, made = new_targets(setup), gradient_launch.new_gradients(cut.setup, flat)
    tables = _tables(setup, cu_seqlens)
    rooms = [memory.new(setup.device) for memory in program.memories]
    before = new_state(setup)
    after = torch.zeros_like(before) if d_state is None else laid_out(d_state)
    first = torch.zeros_like(before) if initial is None else laid_out(initial)
    (slope,), side = _side_by_side([d_output]), targets.view(len(targets), 1, -1, *targets.shape[3:])
    for at in reversed(range(cut.number)):
        entering = first if at == 0 else between[at - 1]
        before = torch.empty_like(before)
        ends = (tables.chunks[at], tables.offsets[at], entering, slope, after, side)
        program(scale, (*flat, *ends, *made.values(), before), rooms)
        after = before
    gathered = zip(gradient_launch.gathered(cut.setup, flat, made), tensors, strict=True)
    return Gradients([None if each is None else each.view_as(tensor) for each, tensor in gathered], before, targets)


def _backward(setup: Setup) -> Program:
    """Worked out once: one stretch, from the state that enters it on."""
    key = ("stretch",)
    if key not in setup.programs:
        again = serial_launch.scan_forward(setup, initial=True, results=False, keep=True)
        steps = [
            *solving_steps(setup),
            *again,
            *serial_launch.scan_back(setup, final=True),
            *gradient_launch.steps(setup),
        ]
        state = setup.state
        ends = (setup.output._replace(name="d_output"), state._replace(name="d_final"), setup.targets)
        made = gradient_launch.gradient_buffers(setup).values()
        d_states = next(buffer for buffer in setup.buffers if buffer.name == "states")._replace(name="d_states")
        own = (d_states, *gradient_launch.scratch(setup), *serial_launch.pieces_of(setup))
        given = (*brought(setup), *ends, *made, state._replace(name="d_initial"))
        setup.programs[key] = setup.program(steps, given, [setup.whole, *rooms_of(own)])
    return setup.programs[key]


def _side_by_side(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Of tensors [B, T, ...], all tokens one after another: [1, B T, ...]."""
    return [laid_out(tensor).view(1, -1, *tensor.shape[2:]) for tensor in tensors]


def _tables(setup: Setup, cu_seqlens: Tensor | None) -> Tables:
    """Made on the device."""
    cut, device = stretches_of(setup), setup.device
    if cu_seqlens is not None:
        ends = [min((at + 1) * cut.tokens, setup.sizes.tokens) for at in range(cut.number)]
        pairs = [packed_chunks(cut.setup, cu_seqlens.clamp(at * cut.tokens, end)) for at, end in enumerate(ends)]
        return Tables([chunks for chunks, _ in pairs], [offsets for _, offsets in pairs])
    batch, tokens, each = setup.sizes.batch, setup.sizes.tokens, cut.setup.each
    first = torch.arange(batch, device=device)[None, :, None] * tokens
    chunk = torch.arange(cut.number * each, device=device).view(-1, 1, each) * setup.use.chunk
    end = (torch.arange(1, cut.number + 1, device=device) * cut.tokens).clamp(max=tokens)[:, None, None]
    shape = (cut.number, batch, each)
    chunks = torch.stack([(first + chunk).expand(shape), (first + end).expand(shape)], -1).view(cut.number, -1, 2)
    offsets = torch.arange(batch + 1, device=device) * each
    return Tables(list(chunks), [offsets] * cut.number)
