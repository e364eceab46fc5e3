"""The entry as torch operations and, where nobody traces, as an autograd function that costs less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from archsearch.kernels.entry import Entry
from archsearch.kernels.triton import eager
from archsearch.kernels.triton.entry import launch


def run(entry: Entry, key: str, tensors: Mapping[str, Tensor], constants: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`archsearch.kernels.entering.entered` by the generated kernels; `key` is that of the entry of the rule."""
    raws = [tensors[name] for name in entry.operands]
    found = [constants[name] for gate in entry.gates for name in gate.constants]
    if not raws:
        return dict(tensors)
    made = _entered(key, raws, found) if eager.applies([*raws, *found]) else enter(raws, found, key)
    return {**tensors, **dict(zip(entry.operands, made, strict=True))}


def _entered(key: str, raws: list[Tensor], constants: list[Tensor]) -> tuple[Tensor, ...]:
    return cast(Any, Entered).apply(key, len(raws), *raws, *constants)


class Entered(torch.autograd.Function):
    """(key, number of raw operands, raw operands..., constants...) -> the operands."""

    @staticmethod
    def forward(ctx: Any, key: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One kernel."""
        raws = tensors[:count]
        ctx.setup, ctx.count = launch.setup_of(key, raws), count
        ctx.save_for_backward(*tensors)
        with torch.cuda.device_of(raws[0]):
            return tuple(launch.enter(ctx.setup, raws, tensors[count:]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One kernel, and a sum over its programs for the constants."""
        back = _once if torch.is_grad_enabled() else _back
        return back(ctx, *gradients)


def _back(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
    raws, constants = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
    with torch.cuda.device_of(raws[0]):
        found, row = launch.leave(ctx.setup, raws, constants, gradients)
    return None, None, *found, *launch.apart(row, constants)


_once = torch.autograd.function.once_differentiable(_back)
"""Where a graph of the backward itself is kept: to go through it again is refused."""


@torch.library.custom_op("archsearch::enter", mutates_args=())
def enter(raws: Sequence[Tensor], constants: Sequence[Tensor], key: str) -> list[Tensor]:
    """The operands, in the order of the entry's sections."""
    with torch.cuda.device_of(raws[0]):
        return launch.enter(launch.setup_of(key, raws), raws, constants)


@enter.register_fake
def _(raws: Sequence[Tensor], constants: Sequence[Tensor], key: str) -> list[Tensor]:
    return launch.new_operands(key, raws)


@torch.library.custom_op("archsearch::leave", mutates_args=())
def leave(raws: Sequence[Tensor], constants: Sequence[Tensor], gradients: Sequence[Tensor], key: str) -> list[Tensor]:
    """The gradients of the raw operands, and in one row those of all constants."""
    with torch.cuda.device_of(raws[0]):
        found, row = launch.leave(launch.setup_of(key, raws), raws, constants, gradients)
    return [*found, row]


@leave.register_fake
def _(raws: Sequence[Tensor], constants: Sequence[Tensor], gradients: Sequence[Tensor], key: str) -> list[Tensor]:
    numbers = sum(constant.numel() for constant in constants)
    return [*(raw.new_empty(raw.shape) for raw in raws), raws[0].new_empty((numbers,), dtype=torch.float32)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    raws, constants, ctx.key = inputs
    ctx.count = len(raws)
    ctx.save_for_backward(*raws, *constants)


def _gradients(ctx: Any, gradients: list[Tensor]) -> tuple[Any, ...]:
    raws, constants = list(ctx.saved_tensors[: ctx.count]), list(ctx.saved_tensors[ctx.count :])
    *found, row = leave(raws, constants, gradients, ctx.key)
    return found, launch.apart(row, constants), None


enter.register_autograd(_gradients, setup_context=_keep)
