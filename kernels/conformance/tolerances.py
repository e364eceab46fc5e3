"""How far a backend may be from the float64 token loop: one table by dtype and quantity.

Errors are relative, ||x - y|| / ||y|| over a whole tensor, where y is computed in float64 from the same rounded inputs.
"""

from __future__ import annotations

from enum import Enum

import torch


class Quantity(Enum):
    """What is compared."""

    VALUE = "output or state"
    GRADIENT = "gradient of a vector or of the initial state"
    GATE_GRADIENT = "gradient of a gate or a log decay"


TABLE: dict[torch.dtype, dict[Quantity, float]] = {
    # The chunkwise algebra is exact: what is left is rounding, amplified by the triangular solve of correlated keys.
    torch.float64: {Quantity.VALUE: 1e-10, Quantity.GRADIENT: 1e-10, Quantity.GATE_GRADIENT: 1e-10},
    # Rounding of 6e-8 summed over a chunk. Gate gradients are differences of large sums.
    torch.float32: {Quantity.VALUE: 1e-4, Quantity.GRADIENT: 1e-4, Quantity.GATE_GRADIENT: 1e-3},
    # The bounds that flash-linear-attention holds its own kernels to; operands and products are rounded to 8 bits.
    torch.bfloat16: {Quantity.VALUE: 0.005, Quantity.GRADIENT: 0.008, Quantity.GATE_GRADIENT: 0.02},
    # 11 bits would allow less, but a plan may keep its triangular inverse in bfloat16, whose range it needs.
    torch.float16: {Quantity.VALUE: 0.005, Quantity.GRADIENT: 0.008, Quantity.GATE_GRADIENT: 0.02},
}

HARD_FACTOR = 2.0
"""Correlated keys and strengths near 1 may double an error in short floats: the inverse of their triangle has larger
entries.
"""

LEAK = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-3}
"""How much earlier results may move, relative to themselves, when later tokens change: rounding order, never
information.
"""

ORDINARY = {Quantity.VALUE: 2.0, Quantity.GRADIENT: 2.5, Quantity.GATE_GRADIENT: 3.5}
"""Sensitivities (see `archsearch.kernels.conformance.sensitivity`) up to which the table holds as it stands: those of
the zoo on hard inputs, whose rules contract the state and read it where it is large.

The table says what rounding costs a rule of that kind. It asks for something untrue where a rule's own results are
worse conditioned, which nothing in a language of free rules prevents: the token loop in float64 moves as much when
only its operands are rounded. There a bound is the table's times sensitivity / ordinary. Two cases, with the error
of the chunkwise algebra in float64 whose operands, T, P T, W, D and states are rounded to bfloat16, and the products
of the inverse, and nothing else: Q-Delta without decay on hard keys has an output of sensitivity 2.7 and loses 9.5e-3
(chunks of 32 tokens; 1.3e-2 of 64). Gated DeltaNet has 1.7 and loses 3.6e-3. A rule that reads at the address it has
just erased, whose output is what is left of a cancellation, has 3.6 and lost 1.2e-2 on an H200.

Two roundings of intermediate results are no rounding of an operand (see `short_products`). What a rule loses by those
two alone adds to the table in squares, as independent errors do: sqrt(table^2 + lost^2), which is within a few percent
of the table for the zoo. Two cases, measured on an H200 and by the same algebra: a write of c * k of strength -0.5,
whose state grows 5e4-fold in 131 tokens, loses 9.6e-3 by the rounding of c * k alone, 1.0e-2 in all; Q-Delta without
decay in chunks of 64 loses 1.6e-2 of its state by the rounding of L alone, 1.7e-2 in all.
"""

MOST_WIDENED = 3.0
"""No bound is widened further: a rule that amplifies more has no results in 16 bits, and fails."""

ROUNDINGS, MOST_WIDENED_WIDE = 4.0, 100.0
"""The same in float32, whose table is a thousand roundings wide: it is too narrow only where nearly nothing is left of
what cancels, such as the gradient of a value that is erased as soon as it is written, 1e-6 of what it is made of. A
bound is then 4 roundings times the sensitivity, and no more than a hundred times the table's.
"""

FINITE_DIFFERENCES = 1e-6
"""Central differences with a step of 1e-6 in float64: truncation 1e-12, cancellation 1e-10, divided by a slope near 1.
"""


def bound(dtype: torch.dtype, quantity: Quantity, *, hard: bool = False) -> float:
    """The largest relative error allowed. `hard` widens the bounds of 16-bit floats alone."""
    short = dtype in (torch.bfloat16, torch.float16)
    return TABLE[dtype][quantity] * (HARD_FACTOR if hard and short else 1.0)
