"""The kernels of a rule run over buffers: forward, backward, one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archsearch.kernels.triton import gradient_launch, serial_launch
from archsearch.kernels.triton.launcher import ALIGNED
from archsearch.kernels.triton.plan import WEAKEST, power
from archsearch.kernels.triton.run import Run
from archsearch.kernels.triton.setup import Saved, Setup, packed_chunks


def forward(
    setup: Setup,
    tensors: Sequence[Tensor],
    initial: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor, Saved]:
    """Output [B, T, HV, V], final state [sequences, HV, K, V] float32, and what the backward needs.

    `keep`: with the state at every chunk's start and D, which the backward computes again where they are missing.
    """
    run = _run(setup, tensors, cu_seqlens, scale)
    output, state = new_results(setup, tensors[0])
    saved = setup.new(tensors[0], keep=keep)
    _prepare(run, saved)
    serial_launch.scan_forward(run, saved, initial, results=(output, state), keep=keep)
    return output, state, saved


def new_results(setup: Setup, like: Tensor) -> tuple[Tensor, Tensor]:
    """An empty output and final state beside `like`."""
    sizes = setup.sizes
    shape = (sizes.batch, sizes.tokens, sizes.value_heads, sizes.value_dim)
    states = (sizes.sequences, sizes.value_heads, sizes.key_dim, sizes.value_dim)
    return like.new_empty(shape, dtype=setup.output_dtype), like.new_empty(states, dtype=torch.float32)


class Gradients(NamedTuple):
    """Of every operand, in its dtype, None for values whose gradient is a part of `targets` [rows, B, T, HV, V]; of the
    initial state in float32.
    """

    operands: list[Tensor | None]
    initial: Tensor
    targets: Tensor


def backward(
    setup: Setup,
    tensors: Sequence[Tensor],
    initial: Tensor | None,
    cu_seqlens: Tensor | None,
    saved: Saved,
    d_output: Tensor,
    d_state: Tensor | None,
    scale: float,
) -> Gradients:
    """The gradients that reach operands and initial state from those of output and final state."""
    run = _run(setup, tensors, cu_seqlens, scale)
    if saved.states is None:
        again = setup.new(tensors[0], keep=True)
        saved = saved._replace(states=again.states, deltas=again.deltas)
        serial_launch.scan_forward(run, saved, initial, results=None, keep=True)
    assert saved.states is not None
    d_states, d_targets = torch.empty_like(saved.states), new_targets(setup, tensors[0])
    d_initial = new_results(setup, tensors[0])[1]
    d_output = laid_out(d_output)
    end = None if d_state is None else d_state.contiguous()
    serial_launch.scan_back(run, saved, d_output, end, d_initial, d_states, d_targets)
    found = gradient_launch.take_gradients(run, saved, d_output, d_states, d_targets)
    return Gradients(found, d_initial, d_targets)


def whole(setup: Setup, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None], targets: Tensor) -> list[Tensor]:
    """The gradient of every operand, those that are a part of `targets` taken from there."""
    pairs = enumerate(zip(gradients, tensors, strict=True))
    return [targets[setup.plain[i]].to(like.dtype) if found is None else found for i, (found, like) in pairs]


def new_targets(setup: Setup, like: Tensor) -> Tensor:
    """An empty gradient of the rows' targets beside `like`."""
    sizes = setup.sizes
    shape = (setup.facts.rows, sizes.batch, sizes.tokens, sizes.value_heads, sizes.value_dim)
    return like.new_empty(shape, dtype=setup.use.storage)


def one_token(setup: Setup, tensors: Sequence[Tensor], state: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """One token: operands [B, 1, ...], state [B, HV, K, V] -> output [B, HV, V] and the state after it, float32."""
    sizes = setup.sizes
    output = state.new_empty((sizes.batch, sizes.value_heads, sizes.value_dim), dtype=setup.output_dtype)
    after = torch.empty_like(state, dtype=torch.float32, memory_format=torch.contiguous_format)
    lanes, keys = sizes.batch * sizes.value_heads, power(sizes.key_dim)
    values = min(32, power(sizes.value_dim))
    if lanes:
        setup.launch(
            "step",
            (_blocks(sizes.value_dim, values) * lanes, 1, 1),
            setup.named([tensor.contiguous() for tensor in tensors])
            | {
                "state": state.contiguous(),
                "output": output,
                "after": after,
                "scale": scale,
                "H": sizes.heads,
                "HV": sizes.value_heads,
                "K": sizes.key_dim,
                "V": sizes.value_dim,
                "KP": keys,
                "BV": values,
                "num_warps": 4,
            },
        )
    return output, after


def _run(setup: Setup, tensors: Sequence[Tensor], cu_seqlens: Tensor | None, scale: float) -> Run:
    table, offsets = (None, None) if cu_seqlens is None else packed_chunks(setup, cu_seqlens)
    return Run(setup, [laid_out(tensor) for tensor in tensors], scale, table, offsets)


def laid_out(tensor: Tensor) -> Tensor:
    """The tensor as kernels and tensor descriptors take it: contiguous, from an aligned address on."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNED else tensor


def _prepare(run: Run, saved: Saved) -> None:
    """G, its sign, what decays leave of a state, T, P T, factors, the bonus's weight and decayed rows of each chunk."""
    setup = run.setup
    if setup.empty:
        return
    named = setup.named(run.tensors)
    grid = (setup.count, setup.sizes.value_heads, 1)
    solved = setup.common | {
        "table": run.table,
        "decay": saved.decay,
        "sign": saved.sign,
        "inverse": saved.inverse,
        "reads": saved.reads,
        "scale": run.scale,
        "BK": setup.use.solve_keys,
        "SOLVE": setup.use.solve_dtype,
        "SOLVE_PRECISION": setup.use.solve,
        "num_warps": setup.use.warps,
        "num_stages": 2,
    }
    rest: dict[str, Any] = {"carry": saved.carry, "factors": saved.factors, "bonus": saved.bonus, "zero": 0.0}
    if not setup.facts.channel:
        setup.launch("solve", grid, named | solved | rest)
        return
    rest |= {name: getattr(saved, name) for name in ("strong", "kept_residual", "kept_write", "kept_read")}
    setup.launch("solve", grid, named | solved | rest | {"LIMIT": WEAKEST, "maxnreg": setup.use.channel_registers})
    levels = {"strong": saved.strong, "LEVELS": setup.use.chunk.bit_length() - 1}
    setup.launch("solve_strong", grid, named | solved | levels)


def _blocks(size: int, block: int) -> int:
    return (size + block - 1) // block
