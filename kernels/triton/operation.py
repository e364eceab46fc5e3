"""The generated kernels as torch operations, with shapes for the compiler and explicit gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.call import Call, Result
from archsearch.kernels.triton import eager, launch
from archsearch.kernels.triton.setup import Saved, setup_of, setup_of_plain
from archsearch.lowering import NormalForm

Forward = tuple[Tensor, Tensor, Tensor]
"""Output, state, and the memory of `Saved`."""


def run(form: NormalForm, key: str, call: Call, chunk_size: int | None) -> Result:
    """All tokens of all sequences; `key` is that of the form."""
    tensors = [call.tensors[operand.name] for operand in form.operands]
    start = call.initial_state
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *(() if start is None else (start,))))
    if eager.applies(tensors if start is None else [*tensors, start]):
        setup = setup_of_plain(key, tensors, start, call.cu_seqlens, chunk_size or 0)
        return Result(*eager.Chunkwise.apply(setup, call.cu_seqlens, call.scale, keep, start, *tensors))
    output, state, _ = chunkwise(tensors, start, call.cu_seqlens, call.scale, chunk_size or 0, keep, key)
    return Result(output, state)


def step(form: NormalForm, key: str, call: Call) -> Result:
    """One token: the operands of `call` have T = 1 and its initial state is the state; `key` is that of the form."""
    tensors = [call.tensors[operand.name] for operand in form.operands]
    assert call.initial_state is not None
    state, every = call.initial_state, [*tensors, call.initial_state]
    graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in every)
    if not graph and eager.applies(every):
        with torch.cuda.device_of(state):
            return Result(*launch.one_token(setup_of_plain(key, tensors, state, None, 0), tensors, state, call.scale))
    return Result(*single_step(tensors, state, call.scale, key))


@torch.library.custom_op("archsearch::chunkwise", mutates_args=())
def chunkwise(
    tensors: Sequence[Tensor],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    chunk_size: int,
    keep: bool,
    key: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """`Forward`. `tensors` in the order of the form's operands; chunk_size 0: the plan's choice.

    `keep`: the state at every chunk's start, and D where it is no value as it is, are left for the backward, which
    else computes them again.
    """
    setup = setup_of(key, tensors, initial_state, cu_seqlens, chunk_size)
    with torch.cuda.device_of(tensors[0]):
        output, state, saved = launch.forward(setup, tensors, initial_state, cu_seqlens, scale, keep=keep)
    return output, state, saved.room


@chunkwise.register_fake
def _(
    tensors: Sequence[Tensor],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    chunk_size: int,
    keep: bool,
    key: str,
) -> Forward:
    setup = setup_of(key, tensors, initial_state, cu_seqlens, chunk_size)
    output, state = launch.new_results(setup)
    return output, state, (setup.whole if keep else setup.kept).new(output.device)


@torch.library.custom_op("archsearch::chunkwise_backward", mutates_args=())
def chunkwise_backward(
    tensors: Sequence[Tensor],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    saved: Tensor,
    d_output: Tensor | None,
    d_state: Tensor | None,
    scale: float,
    chunk_size: int,
    keep: bool,
    key: str,
) -> list[Tensor]:
    """The gradient of every operand that is no part of the gradient of the targets, of the initial state, of targets.

    Parts of one tensor cannot leave an operation side by side: `_gradients` takes them out.
    """
    setup = setup_of(key, tensors, initial_state, cu_seqlens, chunk_size)
    with torch.cuda.device_of(tensors[0]):
        if d_output is None:
            d_output = torch.zeros_like(launch.new_results(setup)[0])
        kept = Saved(saved, states=keep)
        found = launch.backward(setup, tensors, initial_state, cu_seqlens, kept, d_output, d_state, scale)
    if initial_state is None or found.initial is None:
        d_initial = launch.new_state(setup)
    else:
        d_initial = found.initial.to(initial_state.dtype)
    return [*(gradient for gradient in found.operands if gradient is not None), d_initial, found.targets]


@chunkwise_backward.register_fake
def _(
    tensors: Sequence[Tensor],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    saved: Tensor,
    d_output: Tensor | None,
    d_state: Tensor | None,
    scale: float,
    chunk_size: int,
    keep: bool,
    key: str,
) -> list[Tensor]:
    return launch.fake_gradients(setup_of(key, tensors, initial_state, cu_seqlens, chunk_size), tensors, initial_state)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Forward) -> None:
    tensors, initial_state, cu_seqlens, ctx.scale, ctx.chunk_size, ctx.keep, ctx.key = inputs
    ctx.count = len(tensors)
    ctx.save_for_backward(*tensors, initial_state, cu_seqlens, output[2])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, d_output: Tensor | None, d_state: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    tensors = list(ctx.saved_tensors[: ctx.count])
    initial_state, cu_seqlens, saved = ctx.saved_tensors[ctx.count :]
    settings = (ctx.scale, ctx.chunk_size, ctx.keep, ctx.key)
    *found, d_initial, d_targets = chunkwise_backward(
        tensors, initial_state, cu_seqlens, saved, d_output, d_state, *settings
    )
    setup = setup_of(ctx.key, tensors, initial_state, cu_seqlens, ctx.chunk_size)
    operands = launch.all_gradients(setup, tensors, found, d_targets)
    return operands, None if initial_state is None else d_initial, None, None, None, None, None


chunkwise.register_autograd(_gradients, setup_context=_keep)


@torch.library.custom_op("archsearch::single_step", mutates_args=())
def single_step(tensors: Sequence[Tensor], state: Tensor, scale: float, key: str) -> tuple[Tensor, Tensor]:
    """(output [B, HV, V], state after the token)."""
    with torch.cuda.device_of(state):
        return launch.one_token(setup_of(key, tensors, state, None, 0), tensors, state, scale)


@single_step.register_fake
def _(tensors: Sequence[Tensor], state: Tensor, scale: float, key: str) -> tuple[Tensor, Tensor]:
    setup = setup_of(key, tensors, state, None, 0)
    batch, heads, _, value_dim = state.shape
    output = state.new_empty((batch, heads, value_dim), dtype=setup.output_dtype)
    return output, state.new_empty(state.shape, dtype=torch.float32)
