"""What shapes, dtypes and device of a call determine, worked out once: sizes, plan, buffers, constants of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from archsearch.dsl import Kind
from archsearch.kernels.triton import forms, generation, modules, segments
from archsearch.kernels.triton.expressions import pointer
from archsearch.kernels.triton.launcher import Launcher
from archsearch.kernels.triton.plan import Plan, Problem, plan
from archsearch.kernels.triton.serial import address_operands, factors_of, serial_operands, span
from archsearch.kernels.triton.strengths import at_writes, plain_targets
from archsearch.lowering import NormalForm

Shape = tuple[int, ...]


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
    """What the backward needs of the forward, a slot a chunk and head; None where the rule has none.

    G and its sign; what the chunk's decays leave of a state; the factors; T, P and the weight of the bonus; decayed
    rows; the transition of each piece of a sequence; the state at each chunk's start and D, where they are kept.
    """

    decay: Tensor | None = None
    sign: Tensor | None = None
    carry: Tensor | None = None
    factors: Tensor | None = None
    inverse: Tensor | None = None
    reads: Tensor | None = None
    bonus: Tensor | None = None
    kept_residual: Tensor | None = None
    kept_write: Tensor | None = None
    kept_read: Tensor | None = None
    transitions: Tensor | None = None
    states: Tensor | None = None
    deltas: Tensor | None = None


class Buffer(NamedTuple):
    """One entry of `Saved`. `again`: the backward can compute it again."""

    name: str
    shape: Shape
    dtype: torch.dtype
    again: bool = False


@dataclass(frozen=True)
class Setup:
    """Of all calls that look alike. `count` chunks in all, `each` a sequence."""

    form: NormalForm
    sizes: Sizes
    use: Plan
    packed: bool
    count: int
    each: int
    output_dtype: torch.dtype
    buffers: tuple[Buffer, ...]

    @cached_property
    def launch(self) -> Launcher:
        """The kernels of the generated module, by name."""
        return Launcher(modules.load(self.form.name, generation.source(self.form)))

    @cached_property
    def join(self) -> Launcher:
        """The kernel that joins pieces of a sequence."""
        return segments.launcher()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The operands as the kernels call them."""
        return tuple(pointer(operand) for operand in self.form.operands)

    def named(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """The operands of a call by their names in the kernels."""
        return dict(zip(self.names, tensors, strict=True))

    @cached_property
    def serial_tiles(self) -> tuple[tuple[int, str, int], ...]:
        """Operands that the serial kernels load: place in the call, name, channels of a tile; 0 for a block of V."""
        addresses = address_operands(self.form)
        order = {operand.name: i for i, operand in enumerate(self.form.operands)}
        return tuple(
            (order[operand.name], pointer(operand), self.use.key_size if operand.name in addresses else 0)
            for operand in serial_operands(self.form)
        )

    @cached_property
    def channel(self) -> bool:
        """Whether channels decay apart."""
        return self.form.decay_kind == "channel"

    @cached_property
    def has_bonus(self) -> bool:
        """Whether the read adds a bonus."""
        return generation.has_bonus(self.form)

    @cached_property
    def plain(self) -> dict[int, int]:
        """Values whose gradient is that of a row's target: their place in the call, and the row."""
        rows = plain_targets(self.form)
        return {i: rows[operand.name] for i, operand in enumerate(self.form.operands) if operand.name in rows}

    @cached_property
    def lanes(self) -> int:
        """States: sequences times value heads."""
        return self.sizes.sequences * self.sizes.value_heads

    @cached_property
    def empty(self) -> bool:
        """Whether there is nothing to compute over chunks."""
        return not self.count or not self.sizes.value_heads

    @cached_property
    def common(self) -> dict[str, Any]:
        """What every kernel over chunks takes."""
        return self.chunks | {"DT": self.use.dtype, "PRECISION": self.use.precision}

    @cached_property
    def chunks(self) -> dict[str, Any]:
        """What every kernel over chunks takes that multiplies nothing."""
        return {
            "T": self.sizes.tokens,
            "NT": self.each,
            "H": self.sizes.heads,
            "HV": self.sizes.value_heads,
            "K": self.sizes.key_dim,
            "C": self.use.chunk,
            "PACKED": self.packed,
        }

    def new(self, like: Tensor, *, keep: bool) -> Saved:
        """Empty buffers beside `like`; without `keep`, only what the forward itself needs."""
        wanted = (buffer for buffer in self.buffers if keep or not buffer.again)
        return Saved(**{each.name: like.new_empty(each.shape, dtype=each.dtype) for each in wanted})

    def saved(self, tensors: Sequence[Tensor], *, keep: bool) -> Saved:
        """The buffers by name again, from those of `new` that are not None."""
        names = [buffer.name for buffer in self.buffers if keep or not buffer.again]
        return Saved(**dict(zip(names, tensors, strict=True)))


def setup_of(
    key: str, tensors: Sequence[Tensor], state: Tensor | None, cu_seqlens: Tensor | None, chunk_size: int
) -> Setup:
    """The setup of a call. `state`: of an initial state's shape, where there is one; chunk_size 0: the plan's."""
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    dtypes = tuple(tensor.dtype for tensor in tensors)
    start = None if state is None else tuple(state.shape)
    packed = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    # Sizes that a compiler has left open cannot be a key.
    open_sizes = any(isinstance(size, torch.SymInt) for shape in shapes for size in shape) or isinstance(
        packed, torch.SymInt
    )
    found = setup.__wrapped__ if open_sizes else setup
    return found(key, shapes, dtypes, tensors[0].device, start, packed, chunk_size)


@lru_cache(maxsize=4096)
def setup(
    key: str,
    shapes: tuple[Shape, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
    state: Shape | None,
    packed: int | None,
    chunk_size: int,
) -> Setup:
    """The setup for these shapes; `packed`: how many sequences are packed along T."""
    form = at_writes(forms.form(key))
    sizes = _sizes(form, shapes, state, packed)
    problem = Problem(
        span=span(form),
        channel=form.decay_kind == "channel",
        residual=any(row.residual for row in form.rows),
        bonus=generation.has_bonus(form),
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
        tokens=sizes.tokens,
        lanes=sizes.sequences * sizes.value_heads,
        packed=packed is not None,
        dtype=_product_dtype(form, dtypes),
        processors=processors(device),
    )
    use = plan(problem, chunk_size or None)
    each = (sizes.tokens + use.chunk - 1) // use.chunk
    count = sizes.batch * each if packed is None else each + packed  # packed: a bound that needs no look at the offsets
    return Setup(
        form,
        sizes,
        use,
        packed is not None,
        count,
        each,
        _output_dtype(form, dtypes),
        _buffers(form, sizes, use, count),
    )


def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a CUDA device; 0 of any other."""
    if device.type != "cuda":
        return 0
    properties = cast(Any, torch.cuda.get_device_properties(device))  # pyright: ignore[reportUnknownMemberType]
    return int(properties.multi_processor_count)


def packed_chunks(setup: Setup, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """The table [count, 2] of each chunk's first token and its sequence's end, and the chunks before each sequence.

    Made on the device of the offsets; spare entries are empty.
    """
    chunk, sequences = setup.use.chunk, setup.sizes.sequences
    ends = cu_seqlens.to(torch.int64)
    lengths = ends[1:] - ends[:-1]
    offsets = torch.nn.functional.pad(torch.cumsum((lengths + chunk - 1) // chunk, 0), (1, 0))
    index = torch.arange(setup.count, device=ends.device)
    sequence = torch.searchsorted(offsets[1:], index, right=True)
    spare = sequence >= sequences
    sequence = sequence.clamp(max=sequences - 1)
    start = ends[sequence] + (index - offsets[sequence]) * chunk
    table = torch.stack((start, ends[sequence + 1]), 1).masked_fill(spare[:, None], 0)
    return table.contiguous(), offsets


def _sizes(form: NormalForm, shapes: Sequence[Shape], state: Shape | None, packed: int | None) -> Sizes:
    sizes: dict[str, int] = {}
    for operand, shape in zip(form.operands, shapes, strict=True):
        for dim, size in zip(operand.shape.strip("[]").split(", "), shape, strict=True):
            sizes.setdefault(dim, size)
    if state is not None:
        sizes.setdefault("HV", state[1])
        sizes.setdefault("V", state[3])
    sizes.setdefault("HV", sizes["H"])
    sequences = sizes["B"] if packed is None else packed
    return Sizes(sizes["B"], sizes["T"], sizes["H"], sizes["HV"], sizes["K"], sizes["V"], sequences)


def _buffers(form: NormalForm, sizes: Sizes, use: Plan, count: int) -> tuple[Buffer, ...]:
    rows, chunk, keys = span(form), use.chunk, sizes.key_dim
    slots, short, wide = count * sizes.value_heads, use.storage, torch.float32
    channel = form.decay_kind == "channel"
    decay = (slots, chunk // 4, keys) if channel else (slots, chunk)
    solved = any(row.residual for row in form.rows)
    pieces = sizes.sequences * sizes.value_heads * use.segments
    every = (
        (Buffer("decay", decay, wide), bool(form.decays)),
        (Buffer("sign", decay, wide), any(point.sign is not None for point in form.decays)),
        (Buffer("carry", (slots, keys) if channel else (slots,), wide), bool(form.decays)),
        (Buffer("factors", (slots, len(factors_of(form)), chunk), wide), bool(factors_of(form))),
        (Buffer("inverse", (slots, rows * chunk, rows * chunk), short), solved),
        (Buffer("reads", (slots, chunk, rows * chunk), short), True),
        (Buffer("bonus", (slots, chunk), wide), generation.has_bonus(form)),
        (Buffer("kept_residual", (slots, rows, chunk, keys), short), channel and solved),
        (Buffer("kept_write", (slots, rows, chunk, keys), short), channel),
        (Buffer("kept_read", (slots, chunk, keys), short), channel),
        (Buffer("transitions", (pieces, keys, keys), wide), use.segments > 1),
        (Buffer("states", (slots, sizes.value_dim, keys), short, again=True), True),
        (Buffer("deltas", (slots, rows, chunk, sizes.value_dim), short, again=True), True),
    )
    return tuple(buffer for buffer, needed in every if needed)


def _output_dtype(form: NormalForm, dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """That of the values; of the addresses where a rule has no values."""
    pairs = list(zip(form.operands, dtypes, strict=True))
    values = [dtype for operand, dtype in pairs if operand.kind is Kind.VALUE]
    return (values or [dtype for operand, dtype in pairs if operand.is_address])[0]


def _product_dtype(form: NormalForm, dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """The widest dtype among addresses and values: float32 before float16 before bfloat16."""
    pairs = zip(form.operands, dtypes, strict=True)
    found = {dtype for operand, dtype in pairs if operand.is_address or operand.kind is Kind.VALUE}
    return next((dtype for dtype in (torch.float32, torch.float16) if dtype in found), torch.bfloat16)
