"""What a bench times: batches of sequences of given sizes, and the batch of single tokens of a decoding step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from archsearch.errors import ConfigError
from archsearch.kernels.conformance.tolerances import TABLE
from archsearch.lowering.cost import Sizes

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in TABLE}


@dataclass(frozen=True, slots=True)
class Case:
    """What is timed: a batch of sequences, and a batch of single tokens. H key heads and as many value heads."""

    device: torch.device
    dtype: torch.dtype
    batch: int
    tokens: int
    heads: int
    key_dim: int
    value_dim: int
    step_batch: int

    @property
    def sizes(self) -> Sizes:
        """The sizes of the layer."""
        return Sizes(self.key_dim, self.value_dim, self.heads, self.heads, self.dtype.itemsize)

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"B {self.batch} x T {self.tokens}, H {self.heads}, K {self.key_dim}, V {self.value_dim}, {kind}"


@dataclass(frozen=True, slots=True)
class Asked:
    """Sizes as a user gives them; None is what fills the machine at hand. `shapes`: BxT, or BxTxH with its own H."""

    shapes: tuple[str, ...] = ()
    heads: int | None = None
    key_dim: int | None = None
    value_dim: int | None = None
    dtype: str | None = None


def case_here() -> Case:
    """A size that fills the machine at hand."""
    if torch.cuda.is_available():
        return Case(torch.device("cuda"), torch.bfloat16, 8, 4096, 16, 128, 128, step_batch=128)
    return Case(torch.device("cpu"), torch.float32, 2, 512, 4, 64, 64, step_batch=16)


def cases_of(asked: Asked, usual: Case) -> tuple[Case, ...]:
    """The cases that were asked for, sizes left out taken from `usual`.

    Errors: ConfigError for a shape that is none, a size below 1 or a dtype without bounds.
    """
    heads = _size("--heads", asked.heads, usual.heads)
    keys = _size("--key-dim", asked.key_dim, usual.key_dim)
    values = _size("--value-dim", asked.value_dim, usual.value_dim)
    dtype = usual.dtype if asked.dtype is None else _dtype(asked.dtype)
    found: list[Case] = []
    for batch, tokens, own in [_shape(text) for text in asked.shapes] or [(usual.batch, usual.tokens, None)]:
        case = Case(usual.device, dtype, batch, tokens, own or heads, keys, values, usual.step_batch)
        found += [] if case in found else [case]
    return tuple(found)


MOST_TOKENS = 1 << 31
DIGITS = 12
LARGEST_SIZE = 4096
"""Beyond them no machine has the memory."""


def _shape(text: str) -> tuple[int, int, int | None]:
    parts = text.lower().split("x")
    if len(parts) not in (2, 3) or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(
            f"--shape must be BATCHxTOKENS or BATCHxTOKENSxHEADS, each at least 1; got {text!r}. Write --shape 8x4096"
        )
    if max(map(len, parts)) > DIGITS or math.prod(int(part) for part in parts) > MOST_TOKENS:
        raise ConfigError(f"--shape must be at most {MOST_TOKENS:,} tokens, all heads counted; got {text!r}")
    batch, tokens, *heads = (int(part) for part in parts)
    return batch, tokens, heads[0] if heads else None


def _size(option: str, given: int | None, usual: int) -> int:
    if given is not None and given < 1:
        raise ConfigError(f"{option} must be at least 1; got {given}. Leave it out for {usual}")
    if given is not None and given > LARGEST_SIZE:
        raise ConfigError(f"{option} must be at most {LARGEST_SIZE:,}; got {given}. Leave it out for {usual}")
    return usual if given is None else given


def _dtype(given: str) -> torch.dtype:
    if given not in DTYPES:
        raise ConfigError(f"--dtype must be one of {', '.join(DTYPES)}; got {given!r}")
    return DTYPES[given]


def same_layer(cases: Sequence[Case]) -> tuple[Case, ...]:
    """One case for each set of sizes of the layer: steps do not depend on B and T."""
    found: dict[Sizes, Case] = {}
    for case in cases:
        found.setdefault(case.sizes, case)
    return tuple(found.values())
