"""The generated kernels as torch operations, with shapes for the compiler and explicit gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.call import Call, Result
from archsearch.kernels.triton import forms, launch, sizes
from archsearch.lowering import NormalForm

Forward = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""Output, state, and the eight buffers of `sizes.Saved`."""


def run(form: NormalForm, key: str, call: Call, chunk_size: int | None) -> Result:
    """All tokens of all sequences; `key` is that of the form."""
    tensors = [call.tensors[operand.name] for operand in form.operands]
    output, state, *_ = chunkwise(tensors, call.initial_state, call.cu_seqlens, call.scale, chunk_size or 0, key)
    return Result(output, state)


def step(form: NormalForm, key: str, call: Call) -> Result:
    """One token: the operands of `call` have T = 1 and its initial state is the state; `key` is that of the form."""
    tensors = [call.tensors[operand.name] for operand in form.operands]
    assert call.initial_state is not None
    output, state = single_step(tensors, call.initial_state, call.scale, key)
    return Result(output, state)


@torch.library.custom_op("archsearch::chunkwise", mutates_args=())
def chunkwise(
    tensors: Sequence[Tensor],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    chunk_size: int,
    key: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`Forward`. `tensors` in the order of the form's operands; chunk_size 0: the plan's choice."""
    form = forms.form(key)
    with torch.cuda.device_of(tensors[0]):
        output, state, saved = launch.forward(form, tensors, initial_state, cu_seqlens, scale, chunk_size or None)
    return _flat(output, state, saved)


@chunkwise.register_fake
def _(
    tensors: Sequence[Tensor],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    chunk_size: int,
    key: str,
) -> Forward:
    form, first = forms.form(key), tensors[0]
    size = sizes.sizes_of(form, tensors, initial_state, cu_seqlens)
    use = sizes.plan_of(form, tensors, size, chunk_size or None)
    count = sizes.chunk_count(size, use.chunk, packed=cu_seqlens is not None)
    shape = (size.batch, size.tokens, size.value_heads, size.value_dim)
    output = first.new_empty(shape, dtype=sizes.output_dtype(form, tensors))
    states = (size.sequences, size.value_heads, size.key_dim, size.value_dim)
    state = first.new_empty(states, dtype=torch.float32)
    return _flat(output, state, sizes.new_saved(form, size, use, count, first))


@torch.library.custom_op("archsearch::chunkwise_backward", mutates_args=())
def chunkwise_backward(
    tensors: Sequence[Tensor],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    saved: Sequence[Tensor],
    d_output: Tensor,
    d_state: Tensor,
    scale: float,
    chunk_size: int,
    key: str,
) -> list[Tensor]:
    """The gradient of every operand, then that of the initial state."""
    form, kept = forms.form(key), sizes.Saved(*saved)
    with torch.cuda.device_of(tensors[0]):
        gradients, d_initial = launch.backward(
            form, tensors, initial_state, cu_seqlens, kept, d_output, d_state, scale, chunk_size or None
        )
    return [*gradients, d_initial if initial_state is None else d_initial.to(initial_state.dtype)]


@chunkwise_backward.register_fake
def _(
    tensors: Sequence[Tensor],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    saved: Sequence[Tensor],
    d_output: Tensor,
    d_state: Tensor,
    scale: float,
    chunk_size: int,
    key: str,
) -> list[Tensor]:
    like = d_state if initial_state is None else initial_state
    return [*(tensor.new_empty(tensor.shape) for tensor in tensors), like.new_empty(like.shape)]


def _flat(output: Tensor, state: Tensor, saved: sizes.Saved) -> Forward:
    decay, sign, inverse, reads, bonus, kept_residual, kept_write, kept_read = saved
    return output, state, decay, sign, inverse, reads, bonus, kept_residual, kept_write, kept_read


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, initial_state, cu_seqlens, ctx.scale, ctx.chunk_size, ctx.key = inputs
    ctx.count = len(tensors)
    ctx.save_for_backward(*tensors, initial_state, cu_seqlens, *output[2:])
    ctx.set_materialize_grads(True)


def _gradients(ctx: Any, d_output: Tensor, d_state: Tensor, *_: Tensor) -> tuple[Any, ...]:
    tensors = list(ctx.saved_tensors[: ctx.count])
    initial_state, cu_seqlens, *saved = ctx.saved_tensors[ctx.count :]
    settings = (ctx.scale, ctx.chunk_size, ctx.key)
    found = chunkwise_backward(tensors, initial_state, cu_seqlens, saved, d_output, d_state, *settings)
    return found[:-1], None if initial_state is None else found[-1], None, None, None, None


chunkwise.register_autograd(_gradients, setup_context=_keep)


@torch.library.custom_op("archsearch::single_step", mutates_args=())
def single_step(tensors: Sequence[Tensor], state: Tensor, scale: float, key: str) -> tuple[Tensor, Tensor]:
    """(output [B, HV, V], state after the token)."""
    with torch.cuda.device_of(state):
        return launch.step(forms.form(key), tensors, state, scale)


@single_step.register_fake
def _(tensors: Sequence[Tensor], state: Tensor, scale: float, key: str) -> tuple[Tensor, Tensor]:
    batch, heads, _, value_dim = state.shape
    dtype = sizes.output_dtype(forms.form(key), tensors)
    output = state.new_empty((batch, heads, value_dim), dtype=dtype)
    return output, state.new_empty(state.shape, dtype=torch.float32)
