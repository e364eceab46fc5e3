"""What shapes, dtypes and device of a call determine, worked out once: sizes, plan, buffers, constants of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from archsearch.kernels.triton import facts, forms, generation, modules, segments, strengths
from archsearch.kernels.triton.launcher import Launcher
from archsearch.kernels.triton.plan import Plan, Problem, plan
from archsearch.kernels.triton.program import Program
from archsearch.kernels.triton.steps import Buffer, Memory, Of, Shape, Step


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
    """What the backward needs of the forward: buffers in one memory, with those it could compute again or without."""

    room: Tensor
    states: bool


@dataclass(frozen=True, eq=False)
class Setup:
    """Of all calls that look alike. `count` chunks in all, `each` a sequence."""

    key: str
    device: torch.device
    facts: facts.Facts
    sizes: Sizes
    use: Plan
    packed: bool
    count: int
    each: int
    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]
    output_dtype: torch.dtype
    buffers: tuple[Buffer, ...]
    problem: Problem

    @cached_property
    def launch(self) -> Launcher:
        """The kernels of the generated module, by name."""
        return Launcher(modules.load(self.facts.name, generation.source(forms.form(self.key))))

    @cached_property
    def join(self) -> Launcher:
        """The kernel that joins pieces of a sequence."""
        return segments.launcher()

    @cached_property
    def output(self) -> Buffer:
        """What a call returns."""
        shape = (self.sizes.batch, self.sizes.tokens, self.sizes.value_heads, self.sizes.value_dim)
        return Buffer("output", shape, self.output_dtype)

    @cached_property
    def state(self) -> Buffer:
        """The state after a call."""
        shape = (self.sizes.sequences, self.sizes.value_heads, self.sizes.key_dim, self.sizes.value_dim)
        return Buffer("final", shape, torch.float32)

    @cached_property
    def targets(self) -> Buffer:
        """The gradient of the rows' targets."""
        return Buffer("d_targets", (self.facts.rows, *self.output.shape), self.use.storage)

    @cached_property
    def programs(self) -> dict[object, Program]:
        """The passes that were asked for so far."""
        return {}

    def program(self, steps: Sequence[Step], given: Sequence[Buffer], memories: Sequence[Memory]) -> Program:
        """A pass of these launches."""
        launchers = {step.kernel: self.join if step.kernel == segments.JOINING else self.launch for step in steps}
        return Program(launchers, tuple(steps), tuple(given), tuple(memories))

    @cached_property
    def kept(self) -> Memory:
        """The buffers that the backward needs."""
        return Memory.of(tuple(buffer for buffer in self.buffers if not buffer.again))

    @cached_property
    def again(self) -> Memory:
        """The buffers that the backward can compute again."""
        return Memory.of(tuple(buffer for buffer in self.buffers if buffer.again))

    @cached_property
    def whole(self) -> Memory:
        """All buffers."""
        return Memory.of(self.buffers)

    def of(self, name: str) -> Of | None:
        """A buffer as an argument; None where the rule has none of that name."""
        return Of(name) if any(buffer.name == name for buffer in self.buffers) else None

    @property
    def table(self) -> Of | None:
        """The table of packed sequences' chunks, as an argument."""
        return Of("table") if self.packed else None

    @cached_property
    def operands(self) -> tuple[Buffer, ...]:
        """The operands by their names in the kernels."""
        return tuple(map(Buffer, self.facts.pointers, self.shapes, self.dtypes))

    @cached_property
    def pointers(self) -> dict[str, Of]:
        """The operands as arguments."""
        return {name: Of(name) for name in self.facts.pointers}

    @cached_property
    def plain(self) -> dict[int, int]:
        """Values whose gradient is that of a row's target: their place in the call, and the row."""
        return dict(self.facts.plain)

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


def setup_of_plain(
    key: str, tensors: Sequence[Tensor], state: Tensor | None, cu_seqlens: Tensor | None, chunk_size: int
) -> Setup:
    """The same, sooner, for tensors that nobody traces."""
    return setup(
        key,
        tuple([tensor.shape for tensor in tensors]),
        tuple([tensor.dtype for tensor in tensors]),
        tensors[0].device,
        None if state is None else state.shape,
        None if cu_seqlens is None else cu_seqlens.shape[0] - 1,
        chunk_size,
    )


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
    rule = facts.facts_of(strengths.at_writes(forms.form(key)))
    sizes = _sizes(rule, shapes, state, packed)
    problem = Problem(
        span=rule.span,
        channel=rule.channel,
        residual=rule.residual,
        bonus=rule.bonus,
        moved=rule.moved,
        key_tiles=rule.moved + 1 if rule.channel else sum(has_keys for _, has_keys in rule.tiles),
        value_tiles=max(1, sum(not has_keys for _, has_keys in rule.tiles)),
        divided=rule.divided,
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
        tokens=sizes.tokens,
        lanes=sizes.sequences * sizes.value_heads,
        packed=packed is not None,
        dtype=_product_dtype(rule, dtypes),
        processors=processors(device),
    )
    use = plan(problem, chunk_size or None)
    each = (sizes.tokens + use.chunk - 1) // use.chunk
    count = sizes.batch * each if packed is None else each + packed  # packed: a bound that needs no look at the offsets
    return Setup(
        key,
        device,
        rule,
        sizes,
        use,
        packed is not None,
        count,
        each,
        shapes,
        dtypes,
        _output_dtype(rule, dtypes),
        buffers_of(rule, sizes, use, count),
        problem,
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


def _sizes(rule: facts.Facts, shapes: Sequence[Shape], state: Shape | None, packed: int | None) -> Sizes:
    sizes: dict[str, int] = {}
    for dims, shape in zip(rule.shapes, shapes, strict=True):
        for dim, size in zip(dims.split(", "), shape, strict=True):
            sizes.setdefault(dim, size)
    if state is not None:
        sizes.setdefault("HV", state[1])
        sizes.setdefault("V", state[3])
    sizes.setdefault("HV", sizes["H"])
    sequences = sizes["B"] if packed is None else packed
    return Sizes(sizes["B"], sizes["T"], sizes["H"], sizes["HV"], sizes["K"], sizes["V"], sequences)


def buffers_of(rule: facts.Facts, sizes: Sizes, use: Plan, count: int) -> tuple[Buffer, ...]:
    """What a rule keeps, a slot a chunk and head, whole cache lines first.

    T, P T; decayed rows; the transition of each piece of a sequence, a row where it is diagonal; the state at each
    chunk's start; D where it is no value as it is; the factors; the weight of the bonus; G and its sign; what the
    chunk's decays leave of a state; whether decays are strong.
    """
    rows, chunk, keys = rule.span, use.chunk, sizes.key_dim
    slots, short, wide = count * sizes.value_heads, use.storage, torch.float32
    channel = rule.channel
    decay = (slots, chunk // 4, keys) if channel else (slots, chunk)
    solved = rule.residual
    pieces = sizes.sequences * sizes.value_heads * use.segments
    every = (
        (Buffer("inverse", (slots, rows * chunk, rows * chunk), short), solved),
        (Buffer("reads", (slots, chunk, rows * chunk), short), rule.solves),
        (Buffer("kept_residual", (slots, rows, chunk, keys), short), channel and solved),
        (Buffer("kept_write", (slots, rows, chunk, keys), short), channel),
        (Buffer("kept_read", (slots, chunk, keys), short), channel),
        (Buffer("transitions", (pieces, keys, keys) if solved else (pieces, keys), wide), use.segments > 1),
        (Buffer("states", (slots, sizes.value_dim, keys), short, again=True), True),
        (Buffer("deltas", (slots, rows, chunk, sizes.value_dim), short, again=True), rule.keeps_targets),
        (Buffer("factors", (slots, rule.factors, chunk), wide), rule.factors > 0),
        (Buffer("bonus", (slots, chunk), wide), rule.bonus),
        (Buffer("decay", decay, wide), rule.decays),
        (Buffer("sign", decay, wide), rule.signed),
        (Buffer("carry", (slots, keys) if channel else (slots,), wide), rule.decays),
        (Buffer("strong", (slots,), torch.int32), channel),
    )
    return tuple(buffer for buffer, needed in every if needed)


def _output_dtype(rule: facts.Facts, dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """That of the values; of the addresses where there are none; float32 where outputs are still to be divided."""
    return torch.float32 if rule.divided else dtypes[(*rule.values, *rule.addresses)[0]]


def _product_dtype(rule: facts.Facts, dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """The widest dtype among addresses and values: float32 before float16 before bfloat16."""
    found = {dtypes[i] for i in (*rule.addresses, *rule.values)}
    return next((dtype for dtype in (torch.float32, torch.float16) if dtype in found), torch.bfloat16)
