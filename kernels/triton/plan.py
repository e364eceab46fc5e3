"""Sizes of the kernels: a pure function of the rule, the head sizes, the dtype and how many lanes share the card.

Nothing is tuned at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton.language as tl

SMALLEST = 16
"""Tokens a chunk and channels a block: what a matrix product takes."""
FEWEST = 32
"""Rows a chunk. With 16, Triton 3.6 on Hopper computes a float32 rule with a decay per channel wrongly."""
NARROWEST = 32
"""Channels a block where they decay apart, with fewer of them too: with 16, Triton 3.6 on Hopper was seen to compute
the gradient of g of a rule of two rows wrongly.
"""
ROWS = 64
"""Rows a chunk by default."""
SHORTEST_PIECE = 16
"""Chunks that a piece has at least where pieces of a sequence run side by side: each is scanned once more for it."""
SHARED_MEMORY = 229376
"""Bytes of shared memory on sm_90 for the tiles of a serial kernel and the state that it writes."""
MANY_ROWS = 1 << 18
"""Tokens times heads from which on tensor descriptors, which the host makes for a call, save more than they cost."""

WEAKEST = 60.0
"""How much a channel may decay in a chunk, as a log, where rows grow by it: far from where bfloat16 and float32 end."""


@dataclass(frozen=True, slots=True)
class Serial:
    """Of one serial kernel: V block, warps, stages of its loop, whether tiles come by tensor descriptors."""

    values: int
    warps: int
    stages: int
    descriptors: bool


@dataclass(frozen=True, slots=True)
class Gradient:
    """Of the kernel of gradients: blocks of K and V, warps, stages of its loop over V."""

    keys: int
    values: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Plan:
    """C tokens a chunk and the blocks of channels of each kernel.

    Products take operands of `dtype` with `precision` (`solve_dtype`, `solve`: those of the inverse); `storage` is the
    dtype of buffers between kernels. `solve_registers`: at most so many a thread of `solve`. `segments`: pieces of a
    sequence that run side by side; `pieces`: of the scan that finds what each sends on.
    """

    chunk: int
    key_size: int
    solve_keys: int
    solve_registers: int | None
    scan: Serial
    pieces: Serial
    reverse: Serial
    segments: int
    gradient: Gradient
    gradient_keys: int
    gradient_values: int
    channel_registers: int | None
    warps: int
    dtype: tl.dtype
    storage: torch.dtype
    precision: str
    solve_dtype: tl.dtype
    solve: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What a plan depends on. `chunks` is that of one sequence at `tokens` of T; packed sequences have 0."""

    span: int
    channel: bool
    residual: bool
    bonus: bool
    moved: int
    """Tiles of K channels that move the state: those of residuals and writes."""
    key_tiles: int
    value_tiles: int
    """Tiles of K and of V channels that a serial kernel loads for a chunk."""
    divided: bool
    """Whether outputs and their gradients are float32, as outputs are that are still to be divided."""
    key_dim: int
    value_dim: int
    tokens: int
    lanes: int
    packed: bool
    dtype: torch.dtype
    processors: int
    """Streaming multiprocessors; 0 on a CPU."""


def tokens_of_chunk(span: int, chunk_size: int | None) -> int:
    """Tokens a chunk: the power of two nearest below `chunk_size` that gives 32 to 64 rows."""
    most, least = max(SMALLEST, ROWS // span), max(SMALLEST, FEWEST // span)
    if chunk_size is None:
        return most
    return min(most, max(least, 1 << (chunk_size.bit_length() - 1)))


def plan(problem: Problem, chunk_size: int | None) -> Plan:
    """The plan for addresses and values of a dtype.

    Products take bfloat16 as it is, float16 as tf32 (its own range is too small for states), float32 as three tf32.
    """
    wide = problem.dtype != torch.bfloat16
    keys, values = power(problem.key_dim), power(problem.value_dim)
    chunk = tokens_of_chunk(problem.span, chunk_size)
    precision = "tf32x3" if problem.dtype == torch.float32 else "tf32"
    segments = _segments(problem, chunk)
    serial = _serial(problem, chunk, keys, values, wide=wide, segments=segments)
    return Plan(
        chunk=chunk,
        key_size=keys,
        solve_keys=_solve_keys(problem, keys, wide=wide),
        solve_registers=_solve_registers(problem, wide=wide),
        scan=serial,
        pieces=_pieces(serial, problem.moved * chunk),
        reverse=serial,
        segments=segments,
        gradient=_gradient(problem, keys, values, wide=wide),
        gradient_keys=NARROWEST,
        gradient_values=min(values, 32 if wide else 64),
        channel_registers=None if wide else 168,
        warps=4,
        dtype=tl.float32 if wide else tl.bfloat16,
        storage=torch.float32 if wide else torch.bfloat16,
        precision=precision,
        solve_dtype=tl.float32 if wide else tl.bfloat16,
        solve=precision,
    )


def power(size: int) -> int:
    """The power of two, 16 or more, that holds a head size."""
    return max(SMALLEST, 1 << (size - 1).bit_length())


def group_of(programs: int, processors: int) -> int:
    """Chunks, 32 at most, that one program looks at for strong decays: as many as leave four programs a processor, so
    that nothing is lost where every chunk is strong.
    """
    group = 1
    while processors and group < 32 and programs >= 8 * group * processors:
        group *= 2
    return group


def _serial(problem: Problem, chunk: int, keys: int, values: int, *, wide: bool, segments: int) -> Serial:
    """The transposed state [BV, K] stays in registers; a product's left operand wants 64 rows a group of four warps."""
    if wide or keys > 128:
        return Serial(
            min(values, 16 if wide and keys > 128 else 32), 4, 1 if wide or keys > 128 else 2, descriptors=False
        )
    filled = problem.lanes * segments * 8 >= problem.processors * 7
    # Beside a float32 tile of 128 columns three stages would not fit.
    block = min(values, 128 if values >= 128 and filled and not problem.divided else 64)
    stages = 2 if problem.channel and problem.residual and problem.span == 1 else 3
    stages = min(stages, _stages(problem, chunk, keys, block))
    return Serial(block, 8 if block == 128 else 4, stages, descriptors=_describable(problem))


def _stages(problem: Problem, chunk: int, keys: int, block: int) -> int:
    """How often a chunk's bfloat16 tiles, the inverse and the reads among them, fit in shared memory; 1 at least."""
    squares = chunk * chunk * problem.span * (problem.span + 1)
    tiles = chunk * (problem.key_tiles * keys + (problem.value_tiles + problem.divided) * block)
    return max(1, (SHARED_MEMORY - 2 * keys * block) // (2 * (tiles + squares)))


def _pieces(scan: Serial, rows: int) -> Serial:
    """Without reads or output two programs of four warps fit on a processor, which is faster than one of eight; but
    with more than 96 rows of K channels in three stages only one of either fits.
    """
    return replace(scan, values=64, warps=4) if scan.values == 128 and rows <= 96 else scan


def _solve_keys(problem: Problem, keys: int, *, wide: bool) -> int:
    if problem.channel:
        return NARROWEST if wide else max(NARROWEST, min(keys, 64))
    return min(keys, 32 if wide else 128)


def _solve_registers(problem: Problem, *, wide: bool) -> int | None:
    """Where a few are wanting to run four programs of four warps on a processor, those few are spilled."""
    return None if wide or problem.channel or problem.span > 1 or not problem.residual else 128


def _describable(problem: Problem) -> bool:
    """Whether tiles can come by tensor descriptors: rows of whole 16 bytes, each sequence apart, work enough."""
    aligned = problem.key_dim % 8 == 0 and problem.value_dim % 8 == 0
    many = problem.tokens * problem.lanes >= MANY_ROWS
    return problem.processors > 0 and aligned and many and not problem.packed and not problem.bonus


def _segments(problem: Problem, chunk: int) -> int:
    """A power of two of pieces that fills the card when there are fewer lanes than a quarter of its processors."""
    if problem.packed or problem.processors == 0 or problem.key_dim > 128:
        return 1
    chunks = (problem.tokens + chunk - 1) // chunk
    if problem.lanes * 4 > problem.processors:
        return 1
    pieces = 1
    while problem.lanes * pieces * 2 <= problem.processors and chunks >= 2 * pieces * SHORTEST_PIECE:
        pieces *= 2
    return pieces


def _gradient(problem: Problem, keys: int, values: int, *, wide: bool) -> Gradient:
    """Where a token has one row that sees the state, eight warps take 128 keys at once; elsewhere four take 64."""
    if wide:
        return Gradient(min(keys, 32), min(values, 32), 4, 2)
    if problem.span == 1 and problem.residual and keys >= 128:
        return Gradient(128, min(values, 64), 8, 3)
    return Gradient(min(keys, 64), min(values, 64), 4, 3)
