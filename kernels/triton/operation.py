"""The generated kernels as torch operations: forward, backward and one token, with shapes for the compiler and an explicit gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.call import Call, Result
from archsearch.kernels.triton import forms, launch
from archsearch.lowering import NormalForm


def run(form: NormalForm, call: Call, chunk_size: int | None) -> Result:
    """All tokens of all sequences."""
    tensors = [call.tensors[operand.name] for operand in form.operands]
    key = forms.key(form)
    output, state, *_ = chunkwise(tensors, call.initial_state, call.cu_seqlens, call.scale, chunk_size or 0, key)
    return Result(output, state)


def step(form: NormalForm, call: Call) -> Result:
    """One token: the operands of `call` have T = 1 and its initial state is the state."""
    tensors = [call.tensors[operand.name] for operand in form.operands]
    assert call.initial_state is not None
    output, state = single_step(tensors, call.initial_state, call.scale, forms.key(form))
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
    """(output, state, and for the backward what `launch.Saved` holds). `tensors` in the order of the form's operands; chunk_size 0: the plan's choice."""
    with torch.cuda.device_of(tensors[0]):
        output, state, saved = launch.forward(
            forms.form(key), tensors, initial_state, cu_seqlens, scale, chunk_size or None
        )
    return output, state, *saved.tensors


@chunkwise.register_fake
def _(
    tensors: Sequence[Tensor],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    chunk_size: int,
    key: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    form = forms.form(key)
    sizes = launch.sizes_of(form, tensors, initial_state, cu_seqlens)
    use = launch.plan_of(form, tensors, sizes, chunk_size or None)
    count = launch.chunk_count(sizes, use.chunk, packed=cu_seqlens is not None)
    shapes = launch.saved_shapes(form, sizes, use, count)
    first = tensors[0]
    saved = (first.new_empty(s, dtype=d) for s, d in zip(shapes, launch.saved_dtypes(use), strict=True))
    return (
        first.new_empty(
            (sizes.batch, sizes.tokens, sizes.value_heads, sizes.value_dim), dtype=launch.output_dtype(form, tensors)
        ),
        first.new_empty((sizes.sequences, sizes.value_heads, sizes.key_dim, sizes.value_dim), dtype=torch.float32),
        *saved,
    )


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
    form = forms.form(key)
    kept = launch.Saved(*saved)
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


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, initial_state, cu_seqlens, ctx.scale, ctx.chunk_size, ctx.key = inputs
    ctx.count = len(tensors)
    ctx.save_for_backward(*tensors, initial_state, cu_seqlens, *output[2:])
    ctx.set_materialize_grads(True)


def _gradients(ctx: Any, d_output: Tensor, d_state: Tensor, *_: Tensor) -> tuple[Any, ...]:
    tensors = list(ctx.saved_tensors[: ctx.count])
    initial_state, cu_seqlens, *saved = ctx.saved_tensors[ctx.count :]
    found = chunkwise_backward(
        tensors, initial_state, cu_seqlens, saved, d_output, d_state, ctx.scale, ctx.chunk_size, ctx.key
    )
    return found[:-1], None if initial_state is None else found[-1], None, None, None, None


chunkwise.register_autograd(_gradients, setup_context=_keep)


@torch.library.custom_op("archsearch::single_step", mutates_args=())
def single_step(tensors: Sequence[Tensor], state: Tensor, scale: float, key: str) -> tuple[Tensor, Tensor]:
    """(output [B, HV, V], state after the token)."""
    with torch.cuda.device_of(state):
        return launch.step(forms.form(key), tensors, state, scale)


@single_step.register_fake
def _(tensors: Sequence[Tensor], state: Tensor, scale: float, key: str) -> tuple[Tensor, Tensor]:
    form = forms.form(key)
    batch, heads, _, value_dim = state.shape
    return (
        state.new_empty((batch, heads, value_dim), dtype=launch.output_dtype(form, tensors)),
        state.new_empty(state.shape, dtype=torch.float32),
    )
