"""The serial kernels run over buffers: whole sequences, or pieces of them side by side that are joined exactly."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from archsearch.kernels.triton import segments
from archsearch.kernels.triton.plan import Plan, Serial
from archsearch.kernels.triton.run import Run
from archsearch.kernels.triton.setup import Saved


def scan_forward(
    run: Run, saved: Saved, initial: Tensor | None, *, results: tuple[Tensor, Tensor] | None, keep: bool
) -> None:
    """The pass forward: writes `results` (output, final state) and, to `keep`, states at the chunks' starts and D."""
    setup = run.setup
    if not setup.lanes:
        return
    use, pieces = setup.use.scan, setup.use.segments
    start = None if initial is None else initial.contiguous()
    if pieces > 1:
        start = _starts(run, saved, start)
    passed = {**_nothing(saved), "initial": start}
    if results is not None:
        output = _rows(results[0], setup.use.chunk, use.values) if use.descriptors else results[0]
        passed |= {"output": output, "final": results[1]}
    if keep:
        passed |= _kept(saved, setup.use, use)
    flags = {"OUTPUT": results is not None, "SAVE": keep, "INITIAL": start is not None, "PIECES": False}
    grid = (_blocks(setup.sizes.value_dim, use.values) * setup.lanes * pieces, 1, 1)
    setup.launch("scan", grid, _scanned(run, saved, use) | passed | flags)


def _starts(run: Run, saved: Saved, initial: Tensor | None) -> Tensor:
    """The state [V, K] from which each piece starts; notes the transitions of those between the first and the last."""
    setup, use, pieces = run.setup, run.setup.use.pieces, run.setup.use.segments
    assert saved.transitions is not None
    local = _new_pieces(run, saved)
    passed = {**_nothing(saved), "transition": saved.transitions, "initial": initial, "final": local}
    blocks = (pieces - 1) * _blocks(setup.sizes.value_dim, use.values)
    blocks += (pieces - 2) * _blocks(setup.use.key_size, use.values)
    flags = {"OUTPUT": False, "SAVE": False, "INITIAL": initial is not None, "PIECES": True}
    setup.launch("scan", (blocks * setup.lanes, 1, 1), _scanned(run, saved, use) | passed | flags)
    return segments.joined(setup.join, local, saved.transitions, initial, pieces)


def _nothing(saved: Saved) -> dict[str, Any]:
    """What a scan can write, not written."""
    none = dict.fromkeys(("output", "final", "states", "deltas", "transition"))
    return {**none, "bonus": saved.bonus}


def _scanned(run: Run, saved: Saved, use: Serial) -> dict[str, Any]:
    tiles = _tiles(run, saved, use) | _common(run, use)
    return tiles | run.setup.named(run.tensors) if run.setup.facts.bonus else tiles


def scan_back(
    run: Run,
    saved: Saved,
    d_output: Tensor,
    d_final: Tensor | None,
    d_initial: Tensor,
    d_states: Tensor,
    d_targets: Tensor,
) -> None:
    """The pass back: the gradient of the state that leaves each chunk, of the targets, of the initial state."""
    setup = run.setup
    if not setup.lanes:
        return
    use, pieces = setup.use.reverse, setup.use.segments
    tiles = _tiles(run, saved, use)
    tiles["d_output"] = _rows(d_output, setup.use.chunk, use.values) if use.descriptors else d_output
    sizes = setup.sizes
    common = _common(run, use) | {"tokens": sizes.batch * sizes.tokens, "sequences": sizes.batch}
    programs = _blocks(setup.sizes.value_dim, use.values) * setup.lanes
    end = d_final
    if pieces > 1:
        local = _new_pieces(run, saved)
        passed = {"d_final": d_final, "d_initial": local, "d_states": None, "d_targets": None}
        flags = {"PIECES": True, "FINAL": d_final is not None}
        setup.launch("reverse", (programs * (pieces - 1), 1, 1), tiles | common | passed | flags)
        assert saved.transitions is not None
        end = segments.joined(setup.join, local, saved.transitions, d_final, pieces, reverse=True)
    passed = {"d_final": end, "d_initial": d_initial, "d_states": d_states, "d_targets": d_targets}
    if use.descriptors:
        passed |= {"d_states": _states(d_states, use.values, setup.use.key_size)}
        passed |= {"d_targets": _rows(d_targets.view(-1, *d_targets.shape[2:]), setup.use.chunk, use.values)}
    flags = {"PIECES": False, "FINAL": end is not None}
    setup.launch("reverse", (programs * pieces, 1, 1), tiles | common | passed | flags)


def _new_pieces(run: Run, saved: Saved) -> Tensor:
    """Room for one state [V, K] a piece."""
    assert saved.transitions is not None
    sizes = run.setup.sizes
    return saved.transitions.new_empty((run.setup.lanes * run.setup.use.segments, sizes.value_dim, sizes.key_dim))


def _common(run: Run, use: Serial) -> dict[str, Any]:
    setup = run.setup
    return setup.common | {
        "table": run.table,
        "offsets": run.offsets,
        "per_segment": _blocks(setup.each, setup.use.segments),
        "V": setup.sizes.value_dim,
        "KP": setup.use.key_size,
        "BV": use.values,
        "SEGMENTS": setup.use.segments,
        "TMA": use.descriptors,
        "STAGES": use.stages,
        "num_warps": use.warps,
    }


def _tiles(run: Run, saved: Saved, use: Serial) -> dict[str, Any]:
    """What both kernels load, as pointers or as tensor descriptors."""
    setup, chunk = run.setup, run.setup.use.chunk
    found: dict[str, Any] = {"carry": saved.carry}
    for place, has_keys in setup.facts.tiles:
        tensor, block = run.tensors[place], setup.use.key_size if has_keys else use.values
        found[setup.facts.pointers[place]] = _rows(tensor, chunk, block) if use.descriptors else tensor
    matrices = {"inverse": chunk, "reads": chunk}
    if setup.facts.channel:
        matrices |= dict.fromkeys(("kept_residual", "kept_write", "kept_read"), setup.use.key_size)
    for name, block in matrices.items():
        buffer = getattr(saved, name)
        found[name] = _matrix(buffer, chunk, block) if use.descriptors and buffer is not None else buffer
    flat = saved.factors
    if use.descriptors and flat is not None:
        found["factors"] = TensorDescriptor(flat, [flat.numel()], [1], [chunk])
    else:
        found["factors"] = flat
    return found


def _rows(tensor: Tensor, chunk: int, block: int) -> Any:
    """Of a tensor [B, T, heads, N]: a chunk's rows of one head."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, chunk, 1, block])


def _kept(saved: Saved, sizes: Plan, use: Serial) -> dict[str, Any]:
    """Where states and D are written."""
    assert saved.states is not None
    assert saved.deltas is not None
    if not use.descriptors:
        return {"states": saved.states, "deltas": saved.deltas}
    rows = saved.deltas.view(1, -1, 1, saved.deltas.shape[-1])
    return {"states": _states(saved.states, use.values, sizes.key_size), "deltas": _rows(rows, sizes.chunk, use.values)}


def _states(states: Tensor, values: int, keys: int) -> Any:
    """Of a buffer [slots, V, K]: a block of values of one slot."""
    return TensorDescriptor(states, list(states.shape), list(states.stride()), [1, values, keys])


def _matrix(buffer: Tensor, rows: int, block: int) -> Any:
    """Of a buffer of rows [..., N]."""
    flat = buffer.view(-1, buffer.shape[-1])
    return TensorDescriptor(flat, list(flat.shape), list(flat.stride()), [rows, block])


def _blocks(size: int, block: int) -> int:
    return (size + block - 1) // block
