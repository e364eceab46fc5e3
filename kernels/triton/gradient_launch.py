"""The kernel that makes every operand's gradient, run over what the serial passes left."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.triton.plan import WEAKEST
from archsearch.kernels.triton.run import Run
from archsearch.kernels.triton.setup import Saved, Setup


def take_gradients(
    run: Run, saved: Saved, d_output: Tensor, d_states: Tensor, d_targets: Tensor
) -> list[Tensor | None]:
    """The gradient of every operand, in its shape and dtype; None for values whose gradient is in `d_targets`."""
    setup = run.setup
    launched = _launched_by_block if setup.facts.channel else _launched
    made = launched(run, saved, d_output, d_states, d_targets)
    found: list[Tensor | None] = []
    for i, tensor in enumerate(run.tensors):
        if i in setup.plain:
            found.append(None)
        else:
            found.append(_gathered(setup, made[i], tensor) if i in made else torch.zeros_like(tensor))
    return found


def _launched(run: Run, saved: Saved, d_output: Tensor, d_states: Tensor, d_targets: Tensor) -> dict[int, Tensor]:
    """Buffers that the kernels have written, by the operand's place."""
    setup = run.setup
    tiles = {i: _new(setup, i, run.tensors[i]) for i in setup.facts.tiled}
    single = {i: torch.empty_like(run.tensors[i]) for i in setup.facts.numbered}
    if not setup.empty and (tiles or single):
        _launch(run, saved, tiles, single, d_output, d_states, d_targets)
    return tiles | single


def _launch(
    run: Run,
    saved: Saved,
    tiles: dict[int, Tensor],
    single: dict[int, Tensor],
    d_output: Tensor,
    d_states: Tensor,
    d_targets: Tensor,
) -> None:
    """Tiles a block of keys at a time, then the numbers a head from what the blocks leave."""
    setup, use = run.setup, run.setup.use.gradient
    slots = setup.count * setup.sizes.value_heads
    blocks = (setup.sizes.key_dim + use.keys - 1) // use.keys
    places = setup.use.chunk * setup.facts.span
    sums = d_output.new_empty((blocks, setup.facts.sums, slots, places), dtype=torch.float32)
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
    setup.launch(
        "gradients", (slots * blocks, 1, 1), common | _written(setup, tiles) | passed | arguments | setup.common
    )
    if single:
        arguments = {"BLOCKS": blocks, "num_warps": 1}
        setup.launch("numbers", (slots, 1, 1), common | _written(setup, single) | arguments | setup.chunks)


def _launched_by_block(
    run: Run, saved: Saved, d_output: Tensor, d_states: Tensor, d_targets: Tensor
) -> dict[int, Tensor]:
    """The same where channels decay apart: a program a block of keys, whose parts of numbers a head are summed here."""
    setup = run.setup
    parts = (setup.sizes.key_dim + setup.use.gradient_keys - 1) // setup.use.gradient_keys
    made = {i: _new(setup, i, run.tensors[i]) for i in setup.facts.tiled}
    numbered = {
        i: run.tensors[i].new_empty((parts, *run.tensors[i].shape), dtype=torch.float32) for i in setup.facts.numbered
    }
    if not setup.empty:
        passed = _passed(run, saved, d_output, d_states, d_targets) | {"table": run.table}
        passed |= {"scale": run.scale, "zero": 0.0, "BV": setup.use.gradient_values, "num_warps": setup.use.warps}
        squares = _gradients_of_pairs(run, saved, passed)
        common = setup.common | setup.named(run.tensors) | passed | _written(setup, made) | _written(setup, numbered)
        common |= {"strong": saved.strong, "BK": setup.use.gradient_keys, "STAGES": 2, "num_stages": 2}
        grid = (setup.count * parts, setup.sizes.value_heads, 1)
        growing = {"LIMIT": WEAKEST, "maxnreg": setup.use.channel_registers}
        setup.launch("gradients", grid, common | squares | growing)
        setup.launch("gradients_strong", grid, common | {"LEVELS": setup.use.chunk.bit_length() - 1})
    return made | {i: part.sum(0).to(run.tensors[i].dtype) for i, part in numbered.items()}


def _gradients_of_pairs(run: Run, saved: Saved, passed: dict[str, Any]) -> dict[str, Tensor | None]:
    """The gradients of P and -L, once a chunk."""
    like = {"seen_pairs": saved.reads, "row_pairs": saved.inverse}
    squares = {name: None if buffer is None else torch.empty_like(buffer) for name, buffer in like.items()}
    needed = ("table", "deltas", "d_targets", "d_output", "scale", "zero", "tokens", "V", "BV", "num_warps")
    given = {name: passed[name] for name in needed} | {"STAGES": 3}
    run.setup.launch("pairs", (run.setup.count, run.setup.sizes.value_heads, 1), run.setup.common | squares | given)
    return squares


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


def _written(setup: Setup, buffers: dict[int, Tensor]) -> dict[str, Tensor]:
    """Gradients by their names in the kernels."""
    return {f"g_{setup.facts.operands[i]}": buffer for i, buffer in buffers.items()}


def _new(setup: Setup, place: int, like: Tensor) -> Tensor:
    """An empty gradient; of an address that value heads share, one a value head in float32, whose sum is to come."""
    if place not in setup.facts.addresses or setup.sizes.heads == setup.sizes.value_heads:
        return torch.empty_like(like)
    shape = (*like.shape[:2], setup.sizes.value_heads, setup.sizes.key_dim)
    return like.new_empty(shape, dtype=torch.float32)


def _gathered(setup: Setup, made: Tensor, like: Tensor) -> Tensor:
    if made.shape == like.shape:
        return made
    shared = setup.sizes.value_heads // setup.sizes.heads
    return made.view(*made.shape[:2], setup.sizes.heads, shared, made.shape[-1]).sum(3).to(like.dtype)
