"""The low-memory mode (`archsearch.kernels.triton.stretches`) as torch operations, in eager calls too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.call import Call, Result
from archsearch.kernels.triton import launch, longer_tokens, stretches
from archsearch.kernels.triton.cutting import Cut
from archsearch.kernels.triton.setup import setup_of
from archsearch.lowering import NormalForm


def run(form: NormalForm, key: str, call: Call, chunk_size: int | None) -> Result:
    """All tokens of all sequences; `key` is that of the form."""
    tensors = [call.tensors[operand.name] for operand in form.operands]
    output, state, _ = stretched(tensors, call.initial_state, call.cu_seqlens, call.scale, chunk_size or 0, key)
    return Result(output, state)


def run_cut(cut: Cut, key: str, call: Call, chunk_size: int | None) -> Result:
    """The same of a rule of long tokens; `key` is that of the cut form."""
    chunk = None if chunk_size is None else cut.times * chunk_size
    return longer_tokens.shortened(cut, call, run(cut.form, key, longer_tokens.lengthened(cut, call), chunk))


@torch.library.custom_op("archsearch::stretched", mutates_args=())
def stretched(
    tensors: Sequence[Tensor],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    chunk_size: int,
    key: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """(output, final state, states between stretches); arguments as of `archsearch::chunkwise`."""
    setup = setup_of(key, tensors, initial_state, cu_seqlens, chunk_size)
    with torch.cuda.device_of(tensors[0]):
        return stretches.forward(setup, tensors, initial_state, cu_seqlens, scale)


@stretched.register_fake
def _(
    tensors: Sequence[Tensor],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    chunk_size: int,
    key: str,
) -> tuple[Tensor, Tensor, Tensor]:
    setup = setup_of(key, tensors, initial_state, cu_seqlens, chunk_size)
    return *launch.new_results(setup), stretches.new_between(setup)


@torch.library.custom_op("archsearch::stretched_backward", mutates_args=())
def stretched_backward(
    tensors: Sequence[Tensor],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    between: Tensor,
    d_output: Tensor | None,
    d_state: Tensor | None,
    scale: float,
    chunk_size: int,
    key: str,
) -> list[Tensor]:
    """As `archsearch::chunkwise_backward`."""
    setup = setup_of(key, tensors, initial_state, cu_seqlens, chunk_size)
    with torch.cuda.device_of(tensors[0]):
        if d_output is None:
            d_output = torch.zeros_like(launch.new_results(setup)[0])
        found = stretches.backward(setup, tensors, initial_state, cu_seqlens, between, d_output, d_state, scale)
    assert found.initial is not None
    d_initial = found.initial if initial_state is None else found.initial.to(initial_state.dtype)
    return [*(gradient for gradient in found.operands if gradient is not None), d_initial, found.targets]


@stretched_backward.register_fake
def _(
    tensors: Sequence[Tensor],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    between: Tensor,
    d_output: Tensor | None,
    d_state: Tensor | None,
    scale: float,
    chunk_size: int,
    key: str,
) -> list[Tensor]:
    return launch.fake_gradients(setup_of(key, tensors, initial_state, cu_seqlens, chunk_size), tensors, initial_state)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    tensors, initial_state, cu_seqlens, ctx.scale, ctx.chunk_size, ctx.key = inputs
    ctx.count = len(tensors)
    ctx.save_for_backward(*tensors, initial_state, cu_seqlens, output[2])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, d_output: Tensor | None, d_state: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    tensors = list(ctx.saved_tensors[: ctx.count])
    initial_state, cu_seqlens, between = ctx.saved_tensors[ctx.count :]
    *found, d_initial, d_targets = stretched_backward(
        tensors, initial_state, cu_seqlens, between, d_output, d_state, ctx.scale, ctx.chunk_size, ctx.key
    )
    setup = setup_of(ctx.key, tensors, initial_state, cu_seqlens, ctx.chunk_size)
    operands = launch.all_gradients(setup, tensors, found, d_targets)
    return operands, None if initial_state is None else d_initial, None, None, None, None


stretched.register_autograd(_gradients, setup_context=_keep)
