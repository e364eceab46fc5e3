"""What a call's tensors say: sizes, dtypes, chunks, and the buffers that one pass leaves for the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from archsearch.dsl import Kind
from archsearch.kernels.triton import generation
from archsearch.kernels.triton.plan import Plan, plan
from archsearch.lowering import NormalForm


class Sizes(NamedTuple):
    """Of one call: B, T, H, HV, K, V and the number of states."""

    batch: int
    tokens: int
    heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    sequences: int


class Saved(NamedTuple):
    """What the backward needs of the forward, a slot a chunk and head; empty where the rule has none.

    G and its sign, T, P, the weight of the bonus, and decayed rows.
    """

    decay: Tensor
    sign: Tensor
    inverse: Tensor
    reads: Tensor
    bonus: Tensor
    kept_residual: Tensor
    kept_write: Tensor
    kept_read: Tensor


@dataclass(frozen=True, slots=True)
class Chunks:
    """How sequences fall into chunks: `count` in all, `each` a sequence.

    Where sequences are packed, `table` [count, 2] holds each chunk's first token and its sequence's end, and `offsets`
    [sequences + 1] the chunks before each sequence.
    """

    count: int
    each: int
    table: Tensor | None
    offsets: Tensor | None

    @property
    def packed(self) -> bool:
        """Whether sequences are packed along T."""
        return self.table is not None


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


def plan_of(form: NormalForm, tensors: Sequence[Tensor], sizes: Sizes, chunk_size: int | None) -> Plan:
    """The plan of a call."""
    return plan(
        span=generation.span(form),
        channel=form.decay_kind == "channel",
        residual=any(row.residual for row in form.rows),
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
        chunk_size=chunk_size,
        dtype=_product_dtype(form, tensors),
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
    shapes = (
        (decay, bool(form.decays)),
        (decay, signed),
        ((slots, rows, rows), solved),
        ((slots, use.chunk, rows), True),
        ((slots, use.chunk), generation.has_bonus(form)),
        ((slots, rows, sizes.key_dim), kept and solved),
        ((slots, rows, sizes.key_dim), kept),
        ((slots, use.chunk, sizes.key_dim), kept),
    )
    return tuple(shape if needed else (0,) for shape, needed in shapes)


def new_saved(form: NormalForm, sizes: Sizes, use: Plan, count: int, like: Tensor) -> Saved:
    """Empty buffers beside `like`."""
    wide, short = torch.float32, use.storage
    dtypes = (wide, wide, short, short, wide, short, short, short)
    shapes = saved_shapes(form, sizes, use, count)
    return Saved(*(like.new_empty(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)))


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


def _product_dtype(form: NormalForm, tensors: Sequence[Tensor]) -> torch.dtype:
    """The widest dtype among addresses and values: float32 before float16 before bfloat16."""
    pairs = zip(form.operands, tensors, strict=True)
    found = {tensor.dtype for operand, tensor in pairs if operand.is_address or operand.kind is Kind.VALUE}
    return next((dtype for dtype in (torch.float32, torch.float16) if dtype in found), torch.bfloat16)
