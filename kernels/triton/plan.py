"""Sizes of the kernels: a pure function of the rule, the head sizes and the dtype. Nothing is tuned at run time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

SMALLEST = 16
"""Tokens a chunk and channels a block: what a matrix product takes."""
FEWEST = 32
"""Rows a chunk. With 16, Triton 3.6 on Hopper computes a float32 rule with a decay per channel wrongly."""
ROWS = 64
"""Rows a chunk by default."""


@dataclass(frozen=True, slots=True)
class Plan:
    """C tokens a chunk and the blocks of channels of each kernel.

    Products take operands of `dtype` with `precision` (`solve`: those of the inverse); `storage` is the dtype of
    buffers between kernels.
    """

    chunk: int
    key_size: int
    solve_keys: int
    scan_values: int
    gradient_keys: int
    gradient_values: int
    scan_stages: int
    warps: int
    dtype: tl.dtype
    storage: torch.dtype
    precision: str
    solve: str

    @property
    def levels(self) -> int:
        """How often a chunk halves."""
        return self.chunk.bit_length() - 1


def tokens_of_chunk(span: int, chunk_size: int | None) -> int:
    """Tokens a chunk: the power of two nearest below `chunk_size` that gives 32 to 64 rows.

    A token of more than four rows has 128 a chunk.
    """
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
    """The plan for addresses and values of `dtype`.

    Products take bfloat16 as it is, float16 as tf32 (its own range is too small for states), float32 as three tf32.
    """
    wide = dtype != torch.bfloat16
    keys, values = _power(key_dim), _power(value_dim)
    chunk = tokens_of_chunk(span, chunk_size)
    long = chunk * span > ROWS
    precision = "tf32x3" if dtype == torch.float32 else "tf32"
    return Plan(
        chunk=chunk,
        key_size=keys,
        solve_keys=min(keys, 32 if channel or wide else 64),
        scan_values=_scan_values(keys, values, wide=wide, long=long),
        gradient_keys=min(keys, _gradient_keys(channel=channel, residual=residual, wide=wide, long=long)),
        gradient_values=min(values, 32 if wide or long else 64),
        scan_stages=1 if wide or keys > 128 or long else 2,
        warps=8 if long else 4,
        dtype=tl.float32 if wide else tl.bfloat16,
        storage=torch.float32 if wide else torch.bfloat16,
        precision=precision,
        solve=precision,
    )


def _scan_values(keys: int, values: int, *, wide: bool, long: bool) -> int:
    """The state [BV, K] stays in registers."""
    if long and not wide:
        return 64
    most = 16 if wide and keys > 128 else 32 if wide or keys > 128 else 64
    return min(values, most)


def _gradient_keys(*, channel: bool, residual: bool, wide: bool, long: bool) -> int:
    """Narrower where more tiles are alive at once."""
    if long or (channel and wide):
        return 16
    return 32 if wide or (channel and residual) else 64


def _power(size: int) -> int:
    return max(SMALLEST, 1 << (size - 1).bit_length())
