"""The kernels of a rule run over buffers: forward, backward, one token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archsearch.dsl import Kind, Operand
from archsearch.kernels.triton import adjoint, generation, modules
from archsearch.kernels.triton.plan import Plan, plan
from archsearch.lowering import NormalForm


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one call: B, T, H, HV, K, V and the number of states."""

    batch: int
    tokens: int
    heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    sequences: int


@dataclass(frozen=True, slots=True)
class Saved:
    """What the backward needs of the forward, a slot a chunk and head: G, its sign, T, P, the bonus's weight, decayed rows; empty where
    the rule has none."""

    decay: Tensor
    sign: Tensor
    inverse: Tensor
    reads: Tensor
    bonus: Tensor
    kept_residual: Tensor
    kept_write: Tensor
    kept_read: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """All of them, in order."""
        return (
            self.decay,
            self.sign,
            self.inverse,
            self.reads,
            self.bonus,
            self.kept_residual,
            self.kept_write,
            self.kept_read,
        )


@dataclass(frozen=True, slots=True)
class Chunks:
    """How sequences fall into chunks. `table` [chunks, 2] and `offsets` [sequences + 1] where sequences are packed."""

    count: int
    each: int
    table: Tensor | None
    offsets: Tensor | None


def sizes_of(form: NormalForm, tensors: Sequence[Tensor], initial: Tensor | None, cu_seqlens: Tensor | None) -> Sizes:
    """The sizes as the tensors show them."""
    sizes: dict[str, int] = {}
    for operand, tensor in zip(form.operands, tensors, strict=True):
        for dim, size in zip(operand.shape.strip("[]").split(", "), tensor.shape, strict=True):
            sizes.setdefault(dim, size)
    if initial is not None:
        sizes.setdefault("HV", initial.shape[1])
        sizes.setdefault("V", initial.shape[3])
    sizes.setdefault("HV", sizes["H"])
    sequences = sizes["B"] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return Sizes(sizes["B"], sizes["T"], sizes["H"], sizes["HV"], sizes["K"], sizes["V"], sequences)


def product_dtype(form: NormalForm, tensors: Sequence[Tensor]) -> torch.dtype:
    """The widest dtype among addresses and values: float32 before float16 before bfloat16."""
    found = {t.dtype for o, t in zip(form.operands, tensors, strict=True) if o.is_address or o.kind is Kind.VALUE}
    return next((dtype for dtype in (torch.float32, torch.float16) if dtype in found), torch.bfloat16)


def plan_of(form: NormalForm, tensors: Sequence[Tensor], sizes: Sizes, chunk_size: int | None) -> Plan:
    """The plan of a call."""
    return plan(
        span=generation.span(form),
        channel=form.decay_kind == "channel",
        residual=any(row.residual for row in form.rows),
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
        chunk_size=chunk_size,
        dtype=product_dtype(form, tensors),
    )


def output_dtype(form: NormalForm, tensors: Sequence[Tensor]) -> torch.dtype:
    """That of the values; of the addresses where a rule has no values."""
    values = [t.dtype for o, t in zip(form.operands, tensors, strict=True) if o.kind is Kind.VALUE]
    return (values or [t.dtype for o, t in zip(form.operands, tensors, strict=True) if o.is_address])[0]


def saved_shapes(form: NormalForm, sizes: Sizes, use: Plan, count: int) -> tuple[tuple[int, ...], ...]:
    """The shapes of what `Saved` holds; (0,) where the rule has none."""
    slots, rows = count * sizes.value_heads, use.chunk * generation.span(form)
    decay = (slots, use.chunk, sizes.key_dim) if form.decay_kind == "channel" else (slots, use.chunk)
    signed = any(point.sign is not None for point in form.decays)
    solved = any(row.residual for row in form.rows)
    kept = generation.keeps_rows(form)
    return (
        decay if form.decays else (0,),
        decay if signed else (0,),
        (slots, rows, rows) if solved else (0,),
        (slots, use.chunk, rows),
        (slots, use.chunk) if generation.has_bonus(form) else (0,),
        (slots, rows, sizes.key_dim) if kept and solved else (0,),
        (slots, rows, sizes.key_dim) if kept else (0,),
        (slots, use.chunk, sizes.key_dim) if kept else (0,),
    )


def saved_dtypes(use: Plan) -> tuple[torch.dtype, ...]:
    """The dtypes of what `Saved` holds."""
    return (
        torch.float32,
        torch.float32,
        use.storage,
        use.storage,
        torch.float32,
        use.storage,
        use.storage,
        use.storage,
    )


def chunk_count(sizes: Sizes, chunk: int, *, packed: bool) -> int:
    """Chunks of all sequences; packed, a bound that needs no look at the offsets."""
    each = (sizes.tokens + chunk - 1) // chunk
    return each + sizes.sequences if packed else sizes.batch * each


def chunks_of(sizes: Sizes, chunk: int, cu_seqlens: Tensor | None) -> Chunks:
    """The chunks of a call; the table of packed sequences is made on their device, spare entries are empty."""
    count = chunk_count(sizes, chunk, packed=cu_seqlens is not None)
    each = (sizes.tokens + chunk - 1) // chunk
    if cu_seqlens is None:
        return Chunks(count, each, None, None)
    ends = cu_seqlens.to(torch.int64)
    lengths = ends[1:] - ends[:-1]
    offsets = torch.nn.functional.pad(torch.cumsum((lengths + chunk - 1) // chunk, 0), (1, 0))
    index = torch.arange(count, device=ends.device)
    sequence = torch.searchsorted(offsets[1:], index, right=True)
    spare = sequence >= sizes.sequences
    sequence = sequence.clamp(max=sizes.sequences - 1)
    start = ends[sequence] + (index - offsets[sequence]) * chunk
    table = torch.stack((start, ends[sequence + 1]), 1).masked_fill(spare[:, None], 0)
    return Chunks(count, each, table.contiguous(), offsets)


def forward(
    form: NormalForm,
    tensors: Sequence[Tensor],
    initial: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    chunk_size: int | None,
) -> tuple[Tensor, Tensor, Saved]:
    """Output [B, T, HV, V], final state [sequences, HV, K, V] float32, and what the backward needs."""
    tensors = [tensor.contiguous() for tensor in tensors]
    sizes = sizes_of(form, tensors, initial, cu_seqlens)
    use = plan_of(form, tensors, sizes, chunk_size)
    chunks = chunks_of(sizes, use.chunk, cu_seqlens)
    device = tensors[0].device
    output = torch.empty(
        (sizes.batch, sizes.tokens, sizes.value_heads, sizes.value_dim),
        dtype=output_dtype(form, tensors),
        device=device,
    )
    state = torch.empty(
        (sizes.sequences, sizes.value_heads, sizes.key_dim, sizes.value_dim), dtype=torch.float32, device=device
    )
    shapes = saved_shapes(form, sizes, use, chunks.count)
    dtypes = saved_dtypes(use)
    saved = Saved(
        *(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in zip(shapes, dtypes, strict=True))
    )
    kernels = _kernels(form)
    _prepare(form, kernels, tensors, saved, sizes, use, chunks)
    _scan(form, kernels, tensors, saved, sizes, use, chunks, initial, scale, (output, state), None)
    return output, state, saved


def backward(
    form: NormalForm,
    tensors: Sequence[Tensor],
    initial: Tensor | None,
    cu_seqlens: Tensor | None,
    saved: Saved,
    d_output: Tensor,
    d_state: Tensor,
    scale: float,
    chunk_size: int | None,
) -> tuple[list[Tensor], Tensor]:
    """The gradient of every operand, in its dtype, and of the initial state in float32."""
    tensors = [tensor.contiguous() for tensor in tensors]
    d_output, d_state = d_output.contiguous(), d_state.contiguous()
    sizes = sizes_of(form, tensors, initial, cu_seqlens)
    sizes = Sizes(
        *(sizes.batch, sizes.tokens, sizes.heads, sizes.value_heads, sizes.key_dim, d_output.shape[-1], sizes.sequences)
    )
    use = plan_of(form, tensors, sizes, chunk_size)
    chunks = chunks_of(sizes, use.chunk, cu_seqlens)
    kernels = _kernels(form)
    slots, rows = chunks.count * sizes.value_heads, use.chunk * generation.span(form)
    new: Callable[..., Tensor] = tensors[0].new_empty
    states, d_states = (new((slots, sizes.value_dim, sizes.key_dim), dtype=use.storage) for _ in range(2))
    deltas, d_targets = (new((slots, rows, sizes.value_dim), dtype=use.storage) for _ in range(2))
    _scan(form, kernels, tensors, saved, sizes, use, chunks, initial, scale, None, (states, deltas))
    d_initial = torch.empty_like(d_state, dtype=torch.float32)
    kernels.reverse[(_blocks(sizes.value_dim, use.reverse_values), sizes.sequences * sizes.value_heads)](
        *tensors, chunks.table, chunks.offsets, saved.decay, saved.sign, saved.inverse, saved.reads, saved.kept_residual, saved.kept_write,
        saved.kept_read, d_output, d_state, d_initial, d_states,
        d_targets, scale, sizes.tokens, chunks.each, sizes.heads, sizes.value_heads, sizes.key_dim, sizes.value_dim, use.chunk, use.key_size,
        use.reverse_values, chunks.table is not None, use.dtype, use.precision, use.scan_stages,
        num_warps=use.warps,
    )  # fmt: skip
    buffers = _gradient_buffers(form, tensors, sizes, use)
    if chunks.count:
        parts = _blocks(sizes.key_dim, use.gradient_keys)
        kernels.gradients[(chunks.count * parts, sizes.value_heads)](
            *tensors, *buffers.values(), chunks.table, saved.decay, saved.sign, saved.bonus, states, d_states, deltas, d_targets, d_output, scale, 0.0,
            sizes.batch * sizes.tokens, sizes.tokens, chunks.each, sizes.heads, sizes.value_heads, sizes.key_dim, sizes.value_dim, use.chunk,
            use.gradient_keys, use.gradient_values, chunks.table is not None, use.dtype, use.precision, 2, _levels(use.chunk),
            num_warps=use.warps, num_stages=2,
        )  # fmt: skip
    return [
        _gathered(operand, tensor, buffers.get(operand.name), sizes)
        for operand, tensor in zip(form.operands, tensors, strict=True)
    ], d_initial


def step(form: NormalForm, tensors: Sequence[Tensor], state: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """One token: operands [B, 1, ...], state [B, HV, K, V] -> output [B, HV, V] and the state after it, float32."""
    tensors = [tensor.contiguous() for tensor in tensors]
    state = state.contiguous()
    sizes = sizes_of(form, tensors, state, None)
    output = torch.empty(
        (sizes.batch, sizes.value_heads, sizes.value_dim), dtype=output_dtype(form, tensors), device=state.device
    )
    after = torch.empty_like(state, dtype=torch.float32)
    keys = max(16, 1 << (sizes.key_dim - 1).bit_length())
    values = min(32, max(16, 1 << (sizes.value_dim - 1).bit_length()))
    if sizes.batch:
        _kernels(form).step[(_blocks(sizes.value_dim, values), sizes.batch * sizes.value_heads)](
            *tensors, state, output, after, scale, sizes.heads, sizes.value_heads, sizes.key_dim, sizes.value_dim, keys, values, num_warps=4
        )  # fmt: skip
    return output, after


def _kernels(form: NormalForm) -> Any:
    return modules.load(form.name, generation.source(form))


def _prepare(
    form: NormalForm, kernels: Any, tensors: Sequence[Tensor], saved: Saved, sizes: Sizes, use: Plan, chunks: Chunks
) -> None:
    """G, its sign, T and P of every chunk."""
    if not chunks.count:
        return
    packed = chunks.table is not None
    if form.decays:
        block = min(use.key_size, 64)
        parts = _blocks(sizes.key_dim, block) if form.decay_kind == "channel" else 1
        kernels.accumulate[(chunks.count * parts, sizes.value_heads)](
            *tensors, chunks.table, saved.decay, saved.sign, sizes.tokens, chunks.each, sizes.heads, sizes.value_heads, sizes.key_dim, use.chunk,
            block, packed, num_warps=4 if form.decay_kind == "channel" else 1,
        )  # fmt: skip
    kernels.solve[(chunks.count, sizes.value_heads)](
        *tensors, chunks.table, saved.decay, saved.sign, saved.inverse, saved.reads, saved.bonus, saved.kept_residual,
        saved.kept_write, saved.kept_read, 0.0, sizes.tokens, chunks.each, sizes.heads, sizes.value_heads,
        sizes.key_dim, use.chunk, use.solve_keys, packed, use.dtype, use.precision, use.solve, _levels(use.chunk), num_warps=use.warps, num_stages=2,
    )  # fmt: skip


def _scan(
    form: NormalForm,
    kernels: Any,
    tensors: Sequence[Tensor],
    saved: Saved,
    sizes: Sizes,
    use: Plan,
    chunks: Chunks,
    initial: Tensor | None,
    scale: float,
    results: tuple[Tensor, Tensor] | None,
    kept: tuple[Tensor, Tensor] | None,
) -> None:
    """The serial pass: writes `results` (output, final state) or `kept` (state at each chunk's start, D)."""
    output, final = results or (None, None)
    states, deltas = kept or (None, None)
    lanes = sizes.sequences * sizes.value_heads
    if not lanes:
        return
    kernels.scan[(_blocks(sizes.value_dim, use.scan_values), lanes)](
        *tensors, chunks.table, chunks.offsets, saved.decay, saved.sign, saved.inverse, saved.reads, saved.bonus, saved.kept_residual,
        saved.kept_write, saved.kept_read, None if initial is None else initial.contiguous(), output, final, states, deltas, scale, sizes.tokens, chunks.each, sizes.heads,
        sizes.value_heads, sizes.key_dim, sizes.value_dim, use.chunk, use.key_size, use.scan_values, chunks.table is not None,
        initial is not None, results is not None, kept is not None, use.dtype, use.precision, use.scan_stages, num_warps=use.warps,
    )  # fmt: skip


def _gradient_buffers(form: NormalForm, tensors: Sequence[Tensor], sizes: Sizes, use: Plan) -> dict[str, Tensor]:
    """Where the kernel writes: a value head at a time, and numbers a head once a block of keys. In float32 where a sum is still to come."""
    given = dict(zip((operand.name for operand in form.operands), tensors, strict=True))
    parts = _blocks(sizes.key_dim, use.gradient_keys)
    buffers: dict[str, Tensor] = {}
    for operand in adjoint.tiled(form):
        like = given[operand.name]
        shared = operand.is_address and sizes.heads != sizes.value_heads
        shape = (*like.shape[:2], sizes.value_heads, sizes.key_dim) if operand.is_address else like.shape
        buffers[operand.name] = like.new_empty(shape, dtype=torch.float32 if shared else like.dtype)
    for operand in adjoint.numbers(form):
        like = given[operand.name]
        buffers[operand.name] = like.new_empty((parts, *like.shape), dtype=torch.float32 if parts > 1 else like.dtype)
    return buffers


def _gathered(operand: Operand, tensor: Tensor, buffer: Tensor | None, sizes: Sizes) -> Tensor:
    """The gradient of one operand in its own shape and dtype."""
    if buffer is None:
        return torch.zeros_like(tensor)
    if adjoint.is_number(operand):
        return (buffer.sum(0) if len(buffer) > 1 else buffer[0]).to(tensor.dtype)
    if buffer.shape != tensor.shape:
        group = sizes.value_heads // sizes.heads
        return buffer.unflatten(2, (sizes.heads, group)).sum(3).to(tensor.dtype)
    return buffer


def _levels(chunk: int) -> int:
    return chunk.bit_length() - 1


def _blocks(size: int, block: int) -> int:
    return (size + block - 1) // block
