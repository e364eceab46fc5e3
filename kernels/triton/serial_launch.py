"""The serial kernels run over buffers: whole sequences, or pieces of them side by side that are joined exactly."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from archsearch.kernels.triton import segments
from archsearch.kernels.triton.plan import Serial
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
    tiles = _tiles(run, saved, use)
    if setup.facts.bonus:
        tiles |= setup.named(run.tensors)
    common = _common(run, use)
    start = None if initial is None else initial.contiguous()
    nothing = {"output": None, "final": None, "states": None, "deltas": None, "transition": None, "bonus": saved.bonus}
    if pieces > 1:
        local = _new_pieces(run, saved)
        passed = {**nothing, "transition": saved.transitions, "initial": None, "final": local}
        blocks = _blocks(setup.sizes.value_dim, use.values) + _blocks(setup.use.key_size, use.values)
        flags = {"OUTPUT": False, "SAVE": False, "INITIAL": False, "PIECES": True}
        setup.launch("scan", (blocks * setup.lanes * pieces, 1, 1), tiles | passed | common | flags)
        assert saved.transitions is not None
        start = segments.joined(setup.join, local, saved.transitions, start, pieces)
    passed = {**nothing, "initial": start}
    if results is not None:
        passed |= {"output": results[0], "final": results[1]}
    if keep:
        passed |= {"states": saved.states, "deltas": saved.deltas}
    flags = {"OUTPUT": results is not None, "SAVE": keep, "INITIAL": start is not None, "PIECES": False}
    grid = (_blocks(setup.sizes.value_dim, use.values) * setup.lanes * pieces, 1, 1)
    setup.launch("scan", grid, tiles | passed | common | flags)


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
    common = _common(run, use) | {"tokens": setup.sizes.batch * setup.sizes.tokens}
    grid = (_blocks(setup.sizes.value_dim, use.values) * setup.lanes * pieces, 1, 1)
    end = d_final
    if pieces > 1:
        local = _new_pieces(run, saved)
        passed = {"d_final": None, "d_initial": local, "d_states": None, "d_targets": None}
        setup.launch("reverse", grid, tiles | common | passed | {"PIECES": True, "FINAL": False})
        assert saved.transitions is not None
        end = segments.joined(setup.join, local, saved.transitions, d_final, pieces, reverse=True)
    passed = {"d_final": end, "d_initial": d_initial, "d_states": d_states, "d_targets": d_targets}
    setup.launch("reverse", grid, tiles | common | passed | {"PIECES": False, "FINAL": end is not None})


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


def _matrix(buffer: Tensor, rows: int, block: int) -> Any:
    """Of a buffer of rows [..., N]."""
    flat = buffer.view(-1, buffer.shape[-1])
    return TensorDescriptor(flat, list(flat.shape), list(flat.stride()), [rows, block])


def _blocks(size: int, block: int) -> int:
    return (size + block - 1) // block
