"""Launches of the serial kernels: whole sequences, or pieces of them side by side that are joined exactly."""

from __future__ import annotations

import math
from typing import Any

import torch

from archsearch.kernels.triton import segments
from archsearch.kernels.triton.plan import Serial
from archsearch.kernels.triton.setup import Setup
from archsearch.kernels.triton.steps import Buffer, Of, Step, Tile


def scan_forward(setup: Setup, *, initial: bool, results: bool, keep: bool) -> list[Step]:
    """The pass forward, from "initial" where there is one.

    `results`: it writes "output" and "final"; `keep`: "states" at the chunks' starts and "deltas".
    """
    if not setup.lanes:
        return []
    use, pieces = setup.use.scan, setup.use.segments
    tiles = _tiles(setup, use)
    if setup.facts.bonus:
        tiles |= setup.pointers
    common = _common(setup, use)
    start = "initial" if initial else None
    nothing = {"output": None, "final": None, "states": None, "deltas": None, "transition": None}
    nothing |= {"bonus": setup.of("bonus")}
    steps: list[Step] = []
    if pieces > 1:
        passed = {**nothing, "transition": Of("transitions"), "initial": None, "final": Of("local")}
        blocks = _blocks(setup.sizes.value_dim, use.values) + _blocks(setup.use.key_size, use.values)
        flags = {"OUTPUT": False, "SAVE": False, "INITIAL": False, "PIECES": True}
        steps.append(Step("scan", (blocks * setup.lanes * pieces, 1, 1), tiles | passed | common | flags))
        steps.append(_joined(setup, start, reverse=False))
        start = "reached"
    passed = {**nothing, "initial": None if start is None else Of(start)}
    if results:
        passed |= {"output": Of("output"), "final": Of("final")}
    if keep:
        passed |= {"states": Of("states"), "deltas": Of("deltas")}
    flags = {"OUTPUT": results, "SAVE": keep, "INITIAL": start is not None, "PIECES": False}
    grid = (_blocks(setup.sizes.value_dim, use.values) * setup.lanes * pieces, 1, 1)
    return [*steps, Step("scan", grid, tiles | passed | common | flags)]


def scan_back(setup: Setup, *, final: bool) -> list[Step]:
    """The pass back: the gradient of the state that leaves each chunk, of the targets, of the initial state.

    It starts from "d_output" and, with `final`, from "d_final".
    """
    if not setup.lanes:
        return []
    use, pieces = setup.use.reverse, setup.use.segments
    tiles = _tiles(setup, use)
    sizes, chunk = setup.sizes, setup.use.chunk
    shape = (sizes.batch, sizes.tokens, sizes.value_heads, sizes.value_dim)
    rows = Tile("d_output", shape, (1, chunk, 1, use.values))
    tiles["d_output"] = rows if use.descriptors else Of("d_output")
    common = _common(setup, use) | {"tokens": setup.sizes.batch * setup.sizes.tokens}
    grid = (_blocks(setup.sizes.value_dim, use.values) * setup.lanes * pieces, 1, 1)
    end = "d_final" if final else None
    steps: list[Step] = []
    if pieces > 1:
        passed = {"d_final": None, "d_initial": Of("local"), "d_states": None, "d_targets": None}
        steps.append(Step("reverse", grid, tiles | common | passed | {"PIECES": True, "FINAL": False}))
        steps.append(_joined(setup, end, reverse=True))
        end = "reached"
    passed = {name: Of(name) for name in ("d_initial", "d_states", "d_targets")}
    passed |= {"d_final": None if end is None else Of(end)}
    return [*steps, Step("reverse", grid, tiles | common | passed | {"PIECES": False, "FINAL": end is not None})]


def pieces_of(setup: Setup) -> tuple[Buffer, ...]:
    """What pieces of a sequence send on, and what reaches each: one state [V, K] a piece; else nothing."""
    if setup.use.segments == 1:
        return ()
    shape = (setup.lanes * setup.use.segments, setup.sizes.value_dim, setup.sizes.key_dim)
    return tuple(Buffer(name, shape, torch.float32) for name in ("local", "reached"))


def _joined(setup: Setup, entering: str | None, *, reverse: bool) -> Step:
    sizes, each = setup.sizes, setup.use.segments
    return segments.joined(setup.lanes * each, each, sizes.key_dim, sizes.value_dim, entering, reverse=reverse)


def _common(setup: Setup, use: Serial) -> dict[str, Any]:
    return setup.common | {
        "table": setup.table,
        "offsets": Of("offsets") if setup.packed else None,
        "per_segment": _blocks(setup.each, setup.use.segments),
        "V": setup.sizes.value_dim,
        "KP": setup.use.key_size,
        "BV": use.values,
        "SEGMENTS": setup.use.segments,
        "TMA": use.descriptors,
        "STAGES": use.stages,
        "num_warps": use.warps,
    }


def _tiles(setup: Setup, use: Serial) -> dict[str, Any]:
    """What both kernels load, as pointers or as tensor descriptors."""
    chunk = setup.use.chunk
    found: dict[str, Any] = {"carry": setup.of("carry")}
    for place, has_keys in setup.facts.tiles:
        name, block = setup.facts.pointers[place], setup.use.key_size if has_keys else use.values
        found[name] = Tile(name, setup.shapes[place], (1, chunk, 1, block)) if use.descriptors else Of(name)
    matrices = {"inverse": chunk, "reads": chunk}
    if setup.facts.channel:
        matrices |= dict.fromkeys(("kept_residual", "kept_write", "kept_read"), setup.use.key_size)
    buffers = {buffer.name: buffer for buffer in setup.buffers}
    for name in (*matrices, "factors"):
        if name not in buffers:
            found[name] = None
        elif not use.descriptors:
            found[name] = Of(name)
        elif name == "factors":
            found[name] = Tile(name, (math.prod(buffers[name].shape),), (chunk,))
        else:
            found[name] = _matrix(buffers[name], chunk, matrices[name])
    return found


def _matrix(buffer: Buffer, rows: int, block: int) -> Tile:
    """Of a buffer of rows [..., N]."""
    *outer, width = buffer.shape
    return Tile(buffer.name, (math.prod(outer), width), (rows, block))


def _blocks(size: int, block: int) -> int:
    return (size + block - 1) // block
