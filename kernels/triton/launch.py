"""The kernels of a rule run over buffers: forward, backward, one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from archsearch.dsl import Operand
from archsearch.kernels.triton import adjoint, generation, modules
from archsearch.kernels.triton.plan import Plan
from archsearch.kernels.triton.sizes import Chunks, Saved, Sizes, chunks_of, new_saved, output_dtype, plan_of, sizes_of
from archsearch.lowering import NormalForm


@dataclass(frozen=True, slots=True)
class Run:
    """One call on its way through the generated `kernels`; `tensors` are contiguous, in the order of the operands."""

    kernels: Any
    form: NormalForm
    tensors: Sequence[Tensor]
    initial: Tensor | None
    scale: float
    sizes: Sizes
    use: Plan
    chunks: Chunks

    @property
    def lanes(self) -> int:
        """States: sequences times value heads."""
        return self.sizes.sequences * self.sizes.value_heads

    @property
    def common(self) -> dict[str, Any]:
        """What every kernel over chunks takes."""
        return {
            "table": self.chunks.table,
            "T": self.sizes.tokens,
            "NT": self.chunks.each,
            "H": self.sizes.heads,
            "HV": self.sizes.value_heads,
            "K": self.sizes.key_dim,
            "C": self.use.chunk,
            "PACKED": self.chunks.packed,
        }

    @property
    def products(self) -> dict[str, Any]:
        """How kernels multiply, and with how many warps."""
        return {"DT": self.use.dtype, "PRECISION": self.use.precision, "num_warps": self.use.warps}


def forward(
    form: NormalForm,
    tensors: Sequence[Tensor],
    initial: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    chunk_size: int | None,
) -> tuple[Tensor, Tensor, Saved]:
    """Output [B, T, HV, V], final state [sequences, HV, K, V] float32, and what the backward needs."""
    sizes = sizes_of(form, tensors, initial, cu_seqlens)
    run = _run(form, tensors, initial, cu_seqlens, scale, chunk_size, sizes)
    first, states = tensors[0], (sizes.sequences, sizes.value_heads, sizes.key_dim, sizes.value_dim)
    shape = (sizes.batch, sizes.tokens, sizes.value_heads, sizes.value_dim)
    output = first.new_empty(shape, dtype=output_dtype(form, tensors))
    state = first.new_empty(states, dtype=torch.float32)
    saved = new_saved(form, sizes, run.use, run.chunks.count, first)
    _prepare(run, saved)
    _scan(run, saved, results=(output, state))
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
    sizes = sizes_of(form, tensors, d_state, cu_seqlens)
    run = _run(form, tensors, initial, cu_seqlens, scale, chunk_size, sizes)
    slots, rows = run.chunks.count * sizes.value_heads, run.use.chunk * generation.span(form)
    like = d_output.new_empty(0, dtype=run.use.storage)
    states, d_states = (like.new_empty((slots, sizes.value_dim, sizes.key_dim)) for _ in range(2))
    deltas, d_targets = (like.new_empty((slots, rows, sizes.value_dim)) for _ in range(2))
    d_initial = torch.empty_like(d_state, dtype=torch.float32, memory_format=torch.contiguous_format)
    d_output = d_output.contiguous()
    _scan(run, saved, kept=(states, deltas))
    _reverse(run, saved, d_output, d_state.contiguous(), d_initial, d_states, d_targets)
    buffers = _gradient_buffers(run)
    _gradients(run, saved, buffers, d_output, (states, d_states, deltas, d_targets))
    pairs = zip(form.operands, run.tensors, strict=True)
    return [_gathered(operand, tensor, buffers.get(operand.name), sizes) for operand, tensor in pairs], d_initial


def step(form: NormalForm, tensors: Sequence[Tensor], state: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """One token: operands [B, 1, ...], state [B, HV, K, V] -> output [B, HV, V] and the state after it, float32."""
    sizes = sizes_of(form, tensors, state, None)
    output = state.new_empty((sizes.batch, sizes.value_heads, sizes.value_dim), dtype=output_dtype(form, tensors))
    after = torch.empty_like(state, dtype=torch.float32, memory_format=torch.contiguous_format)
    lanes, keys = sizes.batch * sizes.value_heads, _power(sizes.key_dim)
    values = min(32, _power(sizes.value_dim))
    if lanes:
        kernels_of(form).step[(_blocks(sizes.value_dim, values) * lanes,)](
            *(tensor.contiguous() for tensor in tensors),
            state=state.contiguous(),
            output=output,
            after=after,
            scale=scale,
            H=sizes.heads,
            HV=sizes.value_heads,
            K=sizes.key_dim,
            V=sizes.value_dim,
            KP=keys,
            BV=values,
            num_warps=4,
        )
    return output, after


@lru_cache(maxsize=1024)
def kernels_of(form: NormalForm) -> Any:
    """The generated module of a form."""
    return modules.load(form.name, generation.source(form))


def _run(
    form: NormalForm,
    tensors: Sequence[Tensor],
    initial: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    chunk_size: int | None,
    sizes: Sizes,
) -> Run:
    use = plan_of(form, tensors, sizes, chunk_size)
    chunks = chunks_of(sizes, use.chunk, cu_seqlens)
    start = None if initial is None else initial.contiguous()
    return Run(kernels_of(form), form, [tensor.contiguous() for tensor in tensors], start, scale, sizes, use, chunks)


def _prepare(run: Run, saved: Saved) -> None:
    """G, its sign, T, P, the bonus's weight and decayed rows of every chunk."""
    if not run.chunks.count or not run.sizes.value_heads:
        return
    channel, block = run.form.decay_kind == "channel", min(run.use.key_size, 64)
    if run.form.decays:
        parts = _blocks(run.sizes.key_dim, block) if channel else 1
        run.kernels.accumulate[(run.chunks.count * parts, run.sizes.value_heads)](
            *run.tensors, decay=saved.decay, sign=saved.sign, BK=block, num_warps=4 if channel else 1, **run.common
        )
    run.kernels.solve[(run.chunks.count, run.sizes.value_heads)](
        *run.tensors,
        **saved._asdict(),
        zero=0.0,
        BK=run.use.solve_keys,
        SOLVE=run.use.solve,
        LEVELS=run.use.levels,
        num_stages=2,
        **run.common,
        **run.products,
    )


def _scan(
    run: Run,
    saved: Saved,
    *,
    results: tuple[Tensor, Tensor] | None = None,
    kept: tuple[Tensor, Tensor] | None = None,
) -> None:
    """The serial pass: writes `results` (output, final state) or `kept` (the state at each chunk's start, D)."""
    if not run.lanes:
        return
    output, final = results or (None, None)
    states, deltas = kept or (None, None)
    run.kernels.scan[(_blocks(run.sizes.value_dim, run.use.scan_values) * run.lanes,)](
        *run.tensors,
        **saved._asdict(),
        offsets=run.chunks.offsets,
        initial=run.initial,
        output=output,
        final=final,
        states=states,
        deltas=deltas,
        scale=run.scale,
        V=run.sizes.value_dim,
        KP=run.use.key_size,
        BV=run.use.scan_values,
        INITIAL=run.initial is not None,
        OUTPUT=results is not None,
        SAVE=kept is not None,
        STAGES=run.use.scan_stages,
        **run.common,
        **run.products,
    )


def _reverse(
    run: Run,
    saved: Saved,
    d_output: Tensor,
    d_final: Tensor,
    d_initial: Tensor,
    d_states: Tensor,
    d_targets: Tensor,
) -> None:
    """The serial pass back: the gradient of the state that leaves each chunk, of the targets, of the initial state."""
    if not run.lanes:
        return
    run.kernels.reverse[(_blocks(run.sizes.value_dim, run.use.scan_values) * run.lanes,)](
        *run.tensors,
        offsets=run.chunks.offsets,
        decay=saved.decay,
        sign=saved.sign,
        inverse=saved.inverse,
        reads=saved.reads,
        kept_residual=saved.kept_residual,
        kept_write=saved.kept_write,
        kept_read=saved.kept_read,
        d_output=d_output,
        d_final=d_final,
        d_initial=d_initial,
        d_states=d_states,
        d_targets=d_targets,
        scale=run.scale,
        V=run.sizes.value_dim,
        KP=run.use.key_size,
        BV=run.use.scan_values,
        STAGES=run.use.scan_stages,
        **run.common,
        **run.products,
    )


def _gradients(
    run: Run,
    saved: Saved,
    buffers: dict[str, Tensor],
    d_output: Tensor,
    passed: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    """Every operand's gradient from what the serial passes left: states, d_states, deltas, d_targets."""
    if not run.chunks.count or not run.sizes.value_heads:
        return
    states, d_states, deltas, d_targets = passed
    parts = _blocks(run.sizes.key_dim, run.use.gradient_keys)
    run.kernels.gradients[(run.chunks.count * parts, run.sizes.value_heads)](
        *run.tensors,
        *buffers.values(),
        decay=saved.decay,
        sign=saved.sign,
        bonus=saved.bonus,
        states=states,
        d_states=d_states,
        deltas=deltas,
        d_targets=d_targets,
        d_output=d_output,
        scale=run.scale,
        zero=0.0,
        tokens=run.sizes.batch * run.sizes.tokens,
        V=run.sizes.value_dim,
        BK=run.use.gradient_keys,
        BV=run.use.gradient_values,
        STAGES=2,
        LEVELS=run.use.levels,
        num_stages=2,
        **run.common,
        **run.products,
    )


def _gradient_buffers(run: Run) -> dict[str, Tensor]:
    """Where the kernel writes: vectors a value head at a time, numbers a head once a block of keys.

    In float32 where a sum is still to come.
    """
    given = dict(zip((operand.name for operand in run.form.operands), run.tensors, strict=True))
    parts = _blocks(run.sizes.key_dim, run.use.gradient_keys)
    shared = run.sizes.heads != run.sizes.value_heads
    buffers: dict[str, Tensor] = {}
    for operand in adjoint.tiled(run.form):
        like = given[operand.name]
        spread = (*like.shape[:2], run.sizes.value_heads, run.sizes.key_dim)
        shape, dtype = (spread, torch.float32) if shared and operand.is_address else (like.shape, like.dtype)
        buffers[operand.name] = like.new_empty(shape, dtype=dtype)
    for operand in adjoint.numbers(run.form):
        like = given[operand.name]
        dtype = torch.float32 if parts > 1 else like.dtype
        buffers[operand.name] = like.new_empty((parts, *like.shape), dtype=dtype)
    return buffers


def _gathered(operand: Operand, tensor: Tensor, buffer: Tensor | None, sizes: Sizes) -> Tensor:
    """The gradient of one operand in its own shape and dtype."""
    if buffer is None:
        return torch.zeros_like(tensor)
    if adjoint.is_number(operand):
        return (buffer.sum(0) if len(buffer) > 1 else buffer[0]).to(tensor.dtype)
    if buffer.shape == tensor.shape:
        return buffer
    batch, tokens, _, channels = buffer.shape
    grouped = buffer.view(batch, tokens, sizes.heads, sizes.value_heads // sizes.heads, channels)
    return grouped.sum(3).to(tensor.dtype)


def _blocks(size: int, block: int) -> int:
    return (size + block - 1) // block


def _power(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())
