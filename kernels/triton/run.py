"""One call on its way through the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from archsearch.kernels.triton.setup import Setup


@dataclass(frozen=True, slots=True)
class Run:
    """One call on its way; `tensors` are contiguous, in the order of the operands. `table`, `offsets`: of packed
    sequences.
    """

    setup: Setup
    tensors: Sequence[Tensor]
    scale: float
    table: Tensor | None
    offsets: Tensor | None
