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

from archsearch.kernels.triton import serial_launch
from archsearch.kernels.triton.gradient_launch import gathered, new_gradients, write_gradients
from archsearch.kernels.triton.launch import Gradients, laid_out, new_results, new_targets, prepare
from archsearch.kernels.triton.plan import plan
from archsearch.kernels.triton.run import Run
from archsearch.kernels.triton.setup import Saved, Setup, Sizes, buffers_of, packed_chunks

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
    use = replace(
        use,  # a tile of a descriptor would reach into the next sequence
        scan=replace(use.scan, descriptors=False),
        reverse=replace(use.reverse, descriptors=False),
    )
    count = each + sizes.sequences if setup.packed else each * sizes.batch
    flat = Sizes(1, sizes.batch * sizes.tokens, *sizes[2:])
    one = replace(
        setup,
        sizes=flat,
        use=use,
        packed=True,
        count=count,
        each=each,
        buffers=buffers_of(setup.facts, flat, use, count),
    )
    return Stretches(max(1, -(-setup.each // each)), each * chunk, one)


def new_between(setup: Setup, like: Tensor) -> Tensor:
    """Room for the states between stretches [stretches - 1, sequences, HV, K, V]."""
    _, state = new_results(setup, like)
    return state.new_empty((stretches_of(setup).number - 1, *state.shape))


def forward(
    setup: Setup, tensors: Sequence[Tensor], initial: Tensor | None, cu_seqlens: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Output and final state as of `launch.forward`, and the states between stretches."""
    cut, flat = stretches_of(setup), _side_by_side(tensors)
    output, state = new_results(setup, tensors[0])
    between = new_between(setup, tensors[0])
    tables = _tables(setup, cu_seqlens, tensors[0].device)
    entering = torch.zeros_like(state) if initial is None else initial
    whole = output.view(1, -1, *output.shape[2:])
    for at in range(cut.number):
        leaving = state if at == cut.number - 1 else between[at]
        run = Run(cut.setup, flat, scale, tables.chunks[at], tables.offsets[at])
        saved = cut.setup.new(flat[0], keep=False)
        prepare(run, saved)
        serial_launch.scan_forward(run, saved, entering, results=(whole, leaving), keep=False)
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
    targets, made = new_targets(setup, tensors[0]), new_gradients(cut.setup, flat)
    tables = _tables(setup, cu_seqlens, tensors[0].device)
    side = _side_by_side([d_output])[0], targets.view(len(targets), 1, -1, *targets.shape[3:])
    before = new_results(setup, tensors[0])[1]
    after = torch.zeros_like(before) if d_state is None else d_state.contiguous()
    first = torch.zeros_like(before) if initial is None else initial
    for at in reversed(range(cut.number)):
        run = Run(cut.setup, flat, scale, tables.chunks[at], tables.offsets[at])
        before = torch.empty_like(before)
        _back(run, first if at == 0 else between[at - 1], side, after, before, made)
        after = before
    found = [
        None if each is None else each.view_as(tensor)
        for each, tensor in zip(gathered(cut.setup, flat, made), tensors, strict=True)
    ]
    return Gradients(found, before, targets)


def _back(
    run: Run, entering: Tensor, side: tuple[Tensor, Tensor], after: Tensor, before: Tensor, made: dict[int, Tensor]
) -> None:
    """One stretch: all that only it needs is gone afterwards. `side`: gradients of the output and of the targets."""
    saved: Saved = run.setup.new(run.tensors[0], keep=True)
    assert saved.states is not None
    prepare(run, saved)
    serial_launch.scan_forward(run, saved, entering, results=None, keep=True)
    d_output, d_targets = side
    d_states = torch.empty_like(saved.states)
    serial_launch.scan_back(run, saved, d_output, after, before, d_states, d_targets)
    write_gradients(run, saved, d_output, d_states, d_targets, made)


def _side_by_side(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Of tensors [B, T, ...], all tokens one after another: [1, B T, ...]."""
    return [laid_out(tensor).view(1, -1, *tensor.shape[2:]) for tensor in tensors]


def _tables(setup: Setup, cu_seqlens: Tensor | None, device: torch.device) -> Tables:
    """Made on the device."""
    cut = stretches_of(setup)
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
