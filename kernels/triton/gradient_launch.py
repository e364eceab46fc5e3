"""The kernel that makes every operand's gradient, run over what the serial passes left."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archsearch.dsl import Operand
from archsearch.kernels.triton.adjoint import numbers, tiled
from archsearch.kernels.triton.gradients.numbers import sums_of
from archsearch.kernels.triton.gradients.operands import gradient_operands
from archsearch.kernels.triton.run import Run
from archsearch.kernels.triton.serial import span
from archsearch.kernels.triton.setup import Saved, Setup
from archsearch.kernels.triton.strengths import plain_targets


def gradients(run: Run, saved: Saved, d_output: Tensor, d_states: Tensor, d_targets: Tensor) -> list[Tensor | None]:
    """The gradient of every operand, in its shape and dtype; None for values whose gradient is in `d_targets`."""
    setup = run.setup
    made = _launched(run, saved, d_output, d_states, d_targets)
    plain = plain_targets(setup.form)
    found: list[Tensor | None] = []
    for operand, tensor in zip(setup.form.operands, run.tensors, strict=True):
        if operand.name in plain:
            found.append(None)
        elif operand.name in made:
            found.append(_gathered(setup, operand, made[operand.name], tensor))
        else:
            found.append(torch.zeros_like(tensor))
    return found


def _launched(run: Run, saved: Saved, d_output: Tensor, d_states: Tensor, d_targets: Tensor) -> dict[str, Tensor]:
    """Buffers that the kernel has written, by operand."""
    setup = run.setup
    given = dict(zip((operand.name for operand in setup.form.operands), run.tensors, strict=True))
    if setup.channel:
        return _launched_by_block(run, saved, d_output, d_states, d_targets, given)
    tiles = {operand.name: _new(setup, operand, given[operand.name]) for operand in gradient_operands(setup.form)}
    single = {operand.name: torch.empty_like(given[operand.name]) for operand in numbers(setup.form)}
    if not setup.empty and (tiles or single):
        _launch(run, saved, tiles, single, d_output, d_states, d_targets)
    return tiles | single


def _launch(
    run: Run,
    saved: Saved,
    tiles: dict[str, Tensor],
    single: dict[str, Tensor],
    d_output: Tensor,
    d_states: Tensor,
    d_targets: Tensor,
) -> None:
    """Tiles a block of keys at a time, then the numbers a head from what the blocks leave."""
    setup, use = run.setup, run.setup.use.gradient
    slots = setup.count * setup.sizes.value_heads
    blocks = (setup.sizes.key_dim + use.keys - 1) // use.keys
    places = setup.use.chunk * span(setup.form)
    sums = d_output.new_empty((blocks, len(sums_of(setup.form)), slots, places), dtype=torch.float32)
    common = setup.named(run.tensors) | {"table": run.table, "sums": sums, "S": places}
    arguments = {
        "scale": run.scale,
        "zero": 0.0,
        "once": 1,
        "BK": use.keys,
        "BV": use.values,
        "STAGES": use.stages,
        "num_warps": use.warps,
    }
    passed = _passed(run, saved, d_output, d_states, d_targets)
    setup.launch("gradients", (slots * blocks, 1, 1), common | _written(tiles) | passed | arguments | setup.common)
    if single:
        arguments = {"BLOCKS": blocks, "num_warps": 1}
        setup.launch("numbers", (slots, 1, 1), common | _written(single) | arguments | setup.chunks)


def _launched_by_block(
    run: Run, saved: Saved, d_output: Tensor, d_states: Tensor, d_targets: Tensor, given: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The same where channels decay apart: a program a block of keys, whose parts of numbers a head are summed here."""
    setup = run.setup
    parts = (setup.sizes.key_dim + setup.use.gradient_keys - 1) // setup.use.gradient_keys
    made = {operand.name: _new(setup, operand, given[operand.name]) for operand in tiled(setup.form)}
    numbered = {
        operand.name: given[operand.name].new_empty((parts, *given[operand.name].shape), dtype=torch.float32)
        for operand in numbers(setup.form)
    }
    if not setup.empty:
        arguments = {
            "table": run.table,
            "scale": run.scale,
            "zero": 0.0,
            "LEVELS": setup.use.chunk.bit_length() - 1,
            "BK": setup.use.gradient_keys,
            "BV": setup.use.gradient_values,
            "STAGES": 2,
            "num_warps": setup.use.warps,
            "num_stages": 2,
        }
        passed = _passed(run, saved, d_output, d_states, d_targets) | _written(made) | _written(numbered)
        grid = (setup.count * parts, setup.sizes.value_heads, 1)
        setup.launch("gradients", grid, setup.named(run.tensors) | passed | arguments | setup.common)
    return made | {name: part.sum(0).to(given[name].dtype) for name, part in numbered.items()}


def _passed(run: Run, saved: Saved, d_output: Tensor, d_states: Tensor, d_targets: Tensor) -> dict[str, Any]:
    """What the serial passes left."""
    return {
        "decay": saved.decay,
        "sign": saved.sign,
        "bonus": saved.bonus,
        "states": saved.states,
        "d_states": d_states,
        "deltas": saved.deltas,
        "d_targets": d_targets,
        "d_output": d_output,
        "tokens": run.setup.sizes.batch * run.setup.sizes.tokens,
        "V": run.setup.sizes.value_dim,
    }


def _written(buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients by their names in the kernels."""
    return {f"g_{name}": buffer for name, buffer in buffers.items()}


def _new(setup: Setup, operand: Operand, like: Tensor) -> Tensor:
    """An empty gradient; of an address that value heads share, one a value head in float32, whose sum is to come."""
    if not operand.is_address or setup.sizes.heads == setup.sizes.value_heads:
        return torch.empty_like(like)
    shape = (*like.shape[:2], setup.sizes.value_heads, setup.sizes.key_dim)
    return like.new_empty(shape, dtype=torch.float32)


def _gathered(setup: Setup, operand: Operand, made: Tensor, like: Tensor) -> Tensor:
    if made.shape == like.shape:
        return made
    shared = setup.sizes.value_heads // setup.sizes.heads
    return made.view(*made.shape[:2], setup.sizes.heads, shared, made.shape[-1]).sum(3).to(like.dtype)
