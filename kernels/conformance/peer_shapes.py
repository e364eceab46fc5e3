"""Sizes at which flash-linear-attention tests its own kernels of the gated delta rule (tests/ops/test_gated_delta.py):
lengths around a chunk, odd widths, more value heads than key heads, packed lengths.
"""

from __future__ import annotations

from archsearch.kernels.conformance.inputs import Shape

SHAPES = tuple(
    Shape(batch, tokens, heads, value_heads, key_dim=width, value_dim=width)
    for batch, tokens, heads, value_heads, width in (
        (2, 1, 2, 4, 64),
        (1, 15, 1, 1, 64),
        (2, 15, 2, 4, 32),
        (1, 63, 1, 1, 64),
        (2, 63, 2, 4, 256),
        (2, 75, 2, 4, 60),
        (2, 300, 2, 4, 100),
        (2, 500, 3, 3, 60),
        (2, 500, 3, 3, 64),
        (2, 1000, 1, 4, 128),
        (1, 1000, 2, 2, 100),
        (1, 1500, 2, 2, 128),
    )
)
"""Batched."""

PACKED = (
    ((0, 15), 60),
    ((0, 15), 64),
    ((0, 122, 229, 400, 1000), 128),
    ((0, 15, 100, 300, 1200, 2000), 100),
)
"""Offsets of packed sequences, and K = V."""
