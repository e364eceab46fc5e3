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

    `results`: it writes "output" and "final"; `keep`: "states" at the chunks' starts, and "deltas" where there are any.
    """
    if not setup.lanes:
        return []
    use, pieces = setup.use.scan, setup.use.segments
    start = "initial" if initial else None
    steps: list[Step] = []
    if pieces > 1:
        steps += [_sent_on(setup, start), _joined(setup, start, reverse=False)]
        start = "reached"
    passed = _nothing(setup) | {"initial": None if start is None else Of(start)}
    if results:
        passed |= {"output": _rows(setup.output, setup, use), "final": Of("final")}
    if keep:
        passed |= _kept(setup, use)
    flags = {"OUTPUT": results, "SAVE": keep, "INITIAL": start is not None, "PIECES": False}
    grid = (_blocks(setup.sizes.value_dim, use.values) * setup.lanes * pieces, 1, 1)
    return [*steps, Step("scan", grid, _scanned(setup, use) | passed | flags)]


def _sent_on(setup: Setup, initial: str | None) -> Step:
    """What each piece but the last sends on, and the transitions of those between the first and the last."""
    use, pieces = setup.use.pieces, setup.use.segments
    start = None if initial is None else Of(initial)
    passed = {"transition": Of("transitions"), "initial": start, "final": Of("local")}
    blocks = (pieces - 1) * _blocks(setup.sizes.value_dim, use.values)
    if setup.facts.residual:
        blocks += (pieces - 2) * _blocks(setup.use.key_size, use.values)
    flags = {"OUTPUT": False, "SAVE": False, "INITIAL": initial is not None, "PIECES": True}
    return Step("scan", (blocks * setup.lanes, 1, 1), _scanned(setup, use) | _nothing(setup) | passed | flags)


def _nothing(setup: Setup) -> dict[str, Any]:
    """What a scan can write, not written."""
    none = dict.fromkeys(("output", "final", "states", "deltas", "transition"))
    return {**none, "bonus": setup.of("bonus")}


def _scanned(setup: Setup, use: Serial) -> dict[str, Any]:
    tiles = _tiles(setup, use) | _common(setup, use)
    return tiles | setup.pointers if setup.facts.bonus else tiles


def scan_back(setup: Setup, *, final: bool) -> list[Step]:
    """The pass back: the gradient of the state that leaves each chunk, of the targets, of the initial state.

    It starts from "d_output" and, with `final`, from "d_final".
    """
    if not setup.lanes:
        return []
    use, pieces = setup.use.reverse, setup.use.segments
    sizes = setup.sizes
    common = _tiles(setup, use) | _common(setup, use)
    common |= {"d_output": _rows(setup.output._replace(name="d_output"), setup, use)}
    common |= {"tokens": sizes.batch * sizes.tokens, "sequences": sizes.batch}
    programs = _blocks(sizes.value_dim, use.values) * setup.lanes
    end = "d_final" if final else None
    steps: list[Step] = []
    if pieces > 1:
        passed = {"d_initial": Of("local"), "d_final": Of("d_final") if final else None}
        passed |= {"d_states": None, "d_targets": None}
        flags = {"PIECES": True, "FINAL": final}
        steps.append(Step("reverse", (programs * (pieces - 1), 1, 1), common | passed | flags))
        steps.append(_joined(setup, end, reverse=True))
        end = "reached"
    rows, *shape = setup.targets.shape
    targets = setup.targets._replace(shape=(rows * shape[0], *shape[1:]))
    passed = {"d_initial": Of("d_initial"), "d_final": None if end is None else Of(end)}
    passed |= {"d_states": _states("d_states", setup, use), "d_targets": _rows(targets, setup, use)}
    flags = {"PIECES": False, "FINAL": end is not None}
    return [*steps, Step("reverse", (programs * pieces, 1, 1), common | passed | flags)]


def pieces_of(setup: Setup) -> tuple[Buffer, ...]:
    """What pieces of a sequence send on, and what reaches each: one state [V, K] a piece; else nothing."""
    if setup.use.segments == 1:
        return ()
    shape = (setup.lanes * setup.use.segments, setup.sizes.value_dim, setup.sizes.key_dim)
    return tuple(Buffer(name, shape, torch.float32) for name in ("local", "reached"))


def _joined(setup: Setup, entering: str | None, *, reverse: bool) -> Step:
    sizes, each = setup.sizes, setup.use.segments
    return segments.joined(
        setup.lanes * each,
        each,
        sizes.key_dim,
        sizes.value_dim,
        setup.use.precision,
        entering,
        diagonal=not setup.facts.residual,
        reverse=reverse,
    )


def _common(setup: Setup, use: Serial) -> dict[str, Any]:
    common = setup.common | {
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
    return common if setup.facts.solves else common | {"scale": Of("scale")}


def _tiles(setup: Setup, use: Serial) -> dict[str, Any]:
    """What both kernels load, as pointers or as tensor descriptors."""
    chunk = setup.use.chunk
    found: dict[str, Any] = {"carry": setup.of("carry")}
    for place, has_keys in setup.facts.tiles:
        name, block = setup.facts.pointers[place], setup.use.key_size if has_keys else use.values
        found[name] = Tile(name, setup.shapes[place], (1, chunk, 1, block)) if use.descriptors else Of(name)
    rows = chunk * setup.facts.span if setup.facts.together else chunk
    matrices = {"inverse": (rows, rows), "reads": (chunk, rows)}
    if setup.facts.channel:
        matrices |= dict.fromkeys(("kept_residual", "kept_write", "kept_read"), (chunk, setup.use.key_size))
    buffers = {buffer.name: buffer for buffer in setup.buffers}
    for name in (*matrices, "factors"):
        if name not in buffers:
            found[name] = None
        elif not use.descriptors:
            found[name] = Of(name)
        elif name == "factors":
            found[name] = Tile(name, (math.prod(buffers[name].shape),), (chunk,))
        else:
            found[name] = _matrix(buffers[name], matrices[name])
    return found


def _rows(buffer: Buffer, setup: Setup, use: Serial) -> Of | Tile:
    """A chunk's rows of a tensor [sequences, rows, heads, V]."""
    return Tile(buffer.name, buffer.shape, (1, setup.use.chunk, 1, use.values)) if use.descriptors else Of(buffer.name)


def _kept(setup: Setup, use: Serial) -> dict[str, Any]:
    """Where states are written, and D where it is kept."""
    states = {"states": _states("states", setup, use)}
    if not setup.facts.keeps_targets:
        return states
    deltas = next(buffer for buffer in setup.buffers if buffer.name == "deltas")
    *outer, width = deltas.shape
    rows = _rows(deltas._replace(shape=(1, math.prod(outer), 1, width)), setup, use)
    return states | {"deltas": rows}


def _states(name: str, setup: Setup, use: Serial) -> Of | Tile:
    """Of a buffer [slots, V, K]: a block of values of one slot."""
    shape = next(buffer.shape for buffer in setup.buffers if buffer.name == "states")
    return Tile(name, shape, (1, use.values, setup.use.key_size)) if use.descriptors else Of(name)


def _matrix(buffer: Buffer, block: tuple[int, int]) -> Tile:
    """Of a buffer of rows [..., N]."""
    *outer, width = buffer.shape
    return Tile(buffer.name, (math.prod(outer), width), block)


def _blocks(size: int, block: int) -> int:
    return (size + block - 1) // block
