"""Sizes of the kernels: a pure function of the rule's rows, the head sizes, the dtype and the grid. Nothing is tuned at run time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

SMALLEST = 16  # tokens a chunk and channels a block: what a matrix product takes
FEWEST = 32  # rows a chunk: with 16, Triton 3.6 computes a float32 decay per channel wrongly on Hopper
ROWS = 64  # rows a chunk by default


@dataclass(frozen=True, slots=True)
class Plan:
    """C tokens a chunk; blocks of channels of each kernel; operands of products as `dtype` with `precision`; `solve` of the inverse."""

    chunk: int
    key_size: int
    solve_keys: int
    scan_values: int
    reverse_values: int
    gradient_keys: int
    gradient_values: int
    scan_stages: int
    warps: int
    dtype: tl.dtype
    storage: torch.dtype
    precision: str
    solve: str


def tokens_of_chunk(span: int, chunk_size: int | None) -> int:
    """Tokens a chunk: the power of two nearest below `chunk_size` that gives 32 to 64 rows (128 where a token has more than four)."""
    most, least = max(SMALLEST, ROWS // span), max(SMALLEST, FEWEST // span)
    if chunk_size is None:
        return most
    return min(most, max(least, 1 << (chunk_size.bit_length() - 1)))


def plan(
    *,
    span: int,
    channel: bool,
    residual: bool,
    key_dim: int,
    value_dim: int,
    chunk_size: int | None,
    dtype: torch.dtype,
) -> Plan:
    """The plan for operands of `dtype`: bfloat16 products as they are, float16 as tf32 (its range is too small for states), float32 in three."""
    wide = dtype != torch.bfloat16
    keys, values = _power(key_dim), _power(value_dim)
    chunk = tokens_of_chunk(span, chunk_size)
    rows = chunk * span
    scan = min(values, 64 if keys <= 128 and not wide else 32 if keys <= 128 or not wide else 16)
    if rows > ROWS and not wide:
        scan = max(scan, 64)  # 32 with 8 warps and no pipeline reads outside shared memory (Triton 3.6)
    gradient = 16 if rows > ROWS or (channel and wide) else 32 if (channel and residual) or wide else 64
    return Plan(
        chunk=chunk,
        key_size=keys,
        solve_keys=min(keys, 32 if channel or wide else 64),
        scan_values=scan,
        reverse_values=scan,
        gradient_keys=min(keys, gradient),
        gradient_values=min(values, 32 if wide or rows > ROWS else 64),
        scan_stages=1 if wide or keys > 128 or rows > ROWS else 2,
        warps=8 if rows > ROWS else 4,
        dtype=tl.float32 if wide else tl.bfloat16,
        storage=torch.float32 if wide else torch.bfloat16,
        precision="tf32x3" if dtype == torch.float32 else "tf32",
        solve="tf32x3" if dtype == torch.float32 else "tf32",
    )


def _power(size: int) -> int:
    return max(SMALLEST, 1 << (size - 1).bit_length())
