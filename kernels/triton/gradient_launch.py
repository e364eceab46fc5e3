"""Launches of the kernel that makes every operand's gradient from what the serial passes left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.triton.plan import WEAKEST, group_of
from archsearch.kernels.triton.setup import Setup
from archsearch.kernels.triton.steps import Buffer, Of, Step

KEPT = ("decay", "sign", "bonus", "states", "d_states")
"""What the serial passes left that pairs of tokens do not take."""


def steps(setup: Setup) -> list[Step]:
    """Tiles a block of keys at a time, then the numbers a head from what the blocks leave. Where channels decay apart,
    pairs of tokens first, then all together, and once more where decays are strong.
    """
    if setup.empty or not gradient_buffers(setup):
        return []
    return _by_block(setup) if setup.facts.channel else _by_tile(setup)


@lru_cache(maxsize=4096)
def gradient_buffers(setup: Setup) -> dict[int, Buffer]:
    """What the kernels write, by the operand's place.

    Of an address that value heads share, one a value head in float32; where channels decay apart, of a number a head
    one a block of keys in float32: their sums are still to come.
    """
    found = {i: _tile(setup, i) for i in setup.facts.tiled}
    for i in setup.facts.numbered:
        shape, dtype = setup.shapes[i], setup.dtypes[i]
        if setup.facts.channel:
            shape, dtype = (_parts(setup), *shape), torch.float32
        found[i] = Buffer(_name(setup, i), shape, dtype)
    return found


def new_gradients(setup: Setup, tensors: Sequence[Tensor]) -> dict[int, Tensor]:
    """Empty ones beside the operands, which are contiguous."""
    found: dict[int, Tensor] = {}
    for i, buffer in gradient_buffers(setup).items():
        alike = buffer.dtype == setup.dtypes[i] and buffer.shape == setup.shapes[i]
        found[i] = torch.empty_like(tensors[i]) if alike else tensors[i].new_empty(buffer.shape, dtype=buffer.dtype)
    return found


def gathered(setup: Setup, tensors: Sequence[Tensor], made: dict[int, Tensor]) -> list[Tensor | None]:
    """The gradient of every operand, in its shape and dtype; None for values whose gradient is that of a target."""
    found: list[Tensor | None] = []
    for i, tensor in enumerate(tensors):
        if i in setup.plain:
            found.append(None)
        else:
            found.append(_gathered(setup, i, made[i], tensor) if i in made else torch.zeros_like(tensor))
    return found


def scratch(setup: Setup) -> tuple[Buffer, ...]:
    """What the kernels need beside."""
    if setup.facts.channel:
        return tuple(like._replace(name=name) for name, like in _squares(setup).items())
    slots = setup.count * setup.sizes.value_heads
    shape = (_blocks(setup), setup.facts.sums, slots, setup.use.chunk * setup.facts.span)
    return (Buffer("sums", shape, torch.float32),)


def _by_tile(setup: Setup) -> list[Step]:
    use, blocks = setup.use.gradient, _blocks(setup)
    slots = setup.count * setup.sizes.value_heads
    places = setup.use.chunk * setup.facts.span
    common = setup.pointers | {"table": setup.table, "sums": Of("sums"), "S": places}
    arguments = {
        "scale": Of("scale"),
        "zero": 0.0,
        "once": 1,
        "BK": use.keys,
        "BV": use.values,
        "STAGES": use.stages,
        "num_warps": use.warps,
    }
    tiles = common | _written(setup, setup.facts.tiled) | _passed(setup) | arguments | setup.common
    made = [Step("gradients", (slots * blocks, 1, 1), tiles)]
    if setup.facts.numbered:
        arguments = {"BLOCKS": blocks, "num_warps": 1}
        single = common | _written(setup, setup.facts.numbered) | arguments | setup.chunks
        made.append(Step("numbers", (slots, 1, 1), single))
    return made


def _squares(setup: Setup) -> dict[str, Buffer]:
    """The gradients of P and -L by their names, and the buffer that each has the form of."""
    names = {"reads": "seen_pairs", "inverse": "row_pairs"}
    return {names[buffer.name]: buffer for buffer in setup.buffers if buffer.name in names}


def _by_block(setup: Setup) -> list[Step]:
    """A program a chunk, then programs a block of keys."""
    use, heads = setup.use, setup.sizes.value_heads
    passed = setup.common | _passed(setup)
    passed |= {"table": setup.table, "scale": Of("scale"), "zero": 0.0, "BV": use.gradient_values}
    passed |= {"num_warps": use.warps}
    made = _squares(setup)
    squares = {name: Of(name) if name in made else None for name in ("seen_pairs", "row_pairs")}
    taken = {name: value for name, value in passed.items() if name not in KEPT}
    every = passed | setup.pointers | _written(setup, (*setup.facts.tiled, *setup.facts.numbered))
    every |= {"strong": setup.of("strong"), "BK": use.gradient_keys, "STAGES": 2, "num_stages": 2}
    growing = {"LIMIT": WEAKEST, "maxnreg": use.channel_registers}
    grid = (setup.count * _parts(setup), heads, 1)
    group = group_of(setup.count * heads * _parts(setup), setup.problem.processors)
    grouped = ((setup.count + group - 1) // group * _parts(setup), heads, 1)
    strong = {"LEVELS": setup.use.chunk.bit_length() - 1, "count": setup.count, "group": group}
    return [
        Step("pairs", (setup.count, heads, 1), taken | squares | {"STAGES": 3}),
        Step("gradients", grid, every | squares | growing),
        Step("gradients_strong", grouped, every | squares | strong),
    ]


def _passed(setup: Setup) -> dict[str, Any]:
    """What the serial passes left."""
    return {
        "decay": setup.of("decay"),
        "sign": setup.of("sign"),
        "bonus": setup.of("bonus"),
        "states": Of("states"),
        "d_states": Of("d_states"),
        "deltas": setup.of("deltas"),
        "d_targets": Of("d_targets"),
        "d_output": Of("d_output"),
        "tokens": setup.sizes.batch * setup.sizes.tokens,
        "V": setup.sizes.value_dim,
    }


def _written(setup: Setup, places: Iterable[int]) -> dict[str, Of]:
    """Gradients by their names in the kernels."""
    return {_name(setup, i): Of(_name(setup, i)) for i in places}


def _name(setup: Setup, place: int) -> str:
    return f"g_{setup.facts.operands[place]}"


def _tile(setup: Setup, place: int) -> Buffer:
    shape, sizes = setup.shapes[place], setup.sizes
    if place not in setup.facts.addresses or sizes.heads == sizes.value_heads:
        return Buffer(_name(setup, place), shape, setup.dtypes[place])
    return Buffer(_name(setup, place), (*shape[:2], sizes.value_heads, sizes.key_dim), torch.float32)


def _gathered(setup: Setup, place: int, made: Tensor, like: Tensor) -> Tensor:
    if made.shape == like.shape:
        return made
    if place in setup.facts.numbered:
        return made.sum(0).to(like.dtype)
    shared = setup.sizes.value_heads // setup.sizes.heads
    return made.view(*made.shape[:2], setup.sizes.heads, shared, made.shape[-1]).sum(3).to(like.dtype)


def _blocks(setup: Setup) -> int:
    return (setup.sizes.key_dim + setup.use.gradient.keys - 1) // setup.use.gradient.keys


def _parts(setup: Setup) -> int:
    return (setup.sizes.key_dim + setup.use.gradient_keys - 1) // setup.use.gradient_keys
