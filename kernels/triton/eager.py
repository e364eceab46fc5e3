"""The passes as an autograd function: what runs when no compiler looks on, at less cost than a custom operation."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from archsearch.kernels.triton import launch
from archsearch.kernels.triton.setup import Saved, Setup


def applies(tensors: list[Tensor]) -> bool:
    """Whether nobody traces or stands in for these tensors, and their memory holds them as they are.

    The negative of a tensor may be a view that is negated when read, as the imaginary part of a conjugate is.
    """
    modes = cast(Any, torch.utils)._python_dispatch
    if torch.compiler.is_compiling() or modes.is_in_torch_dispatch_mode():
        return False
    return all((type(each) is Tensor or type(each) is nn.Parameter) and not each.is_neg() for each in tensors)


class Chunkwise(torch.autograd.Function):
    """(setup, cu_seqlens, scale, keep, initial state, operands...) -> (output, final state), as the operation."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        setup: Setup,
        cu_seqlens: Tensor | None,
        scale: float,
        keep: bool,
        initial_state: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The pass forward."""
        with torch.cuda.device_of(tensors[0]):
            output, state, saved = launch.forward(setup, tensors, initial_state, cu_seqlens, scale, keep=keep)
        if keep:
            ctx.save_for_backward(cu_seqlens, initial_state, saved.room, *tensors)
        ctx.setup, ctx.scale = setup, scale
        ctx.set_materialize_grads(False)
        return output, state

    @staticmethod
    def backward(ctx: Any, d_output: Tensor | None, d_state: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The pass back."""
        back = _once if torch.is_grad_enabled() else _back
        return back(ctx, d_output, d_state)


def _back(ctx: Any, d_output: Tensor | None, d_state: Tensor | None) -> tuple[Any, ...]:
    setup: Setup = ctx.setup
    cu_seqlens, initial_state, room, *tensors = ctx.saved_tensors
    saved = Saved(room, states=True)
    with torch.cuda.device_of(tensors[0]):
        if d_output is None:
            d_output = torch.zeros_like(launch.new_results(setup)[0])
        found = launch.backward(setup, tensors, initial_state, cu_seqlens, saved, d_output, d_state, ctx.scale)
    d_initial = None if found.initial is None else found.initial.to(initial_state.dtype)
    return None, None, None, None, d_initial, *launch.whole(setup, tensors, found.operands, found.targets)


_once = torch.autograd.function.once_differentiable(_back)
"""Where a graph of the backward itself is kept: to go through it again is refused."""
