"""The kernels of an entry run over buffers: raw operands to operands, and gradients back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archsearch.kernels.entry import VectorEntry
from archsearch.kernels.triton import modules
from archsearch.kernels.triton.entry import generation
from archsearch.kernels.triton.entry.sections import Section, sections
from archsearch.kernels.triton.launcher import ALIGNED

Shape = tuple[int, ...]
TILE = 2048
"""Numbers of a tile: 16 a thread of four warps."""
MOST = 128
"""Tokens of a tile, at most."""
WARPS = 4
PROGRAMS = 2048
"""Enough to fill any device several times over: what the sums over tokens are shared out to, at most."""
LONGEST = 256
"""Tokens over which a program sums where one program takes all heads."""


class Extent(NamedTuple):
    """Of one section: heads and channels as the kernels count them, channels with idle ones, tokens of a tile."""

    heads: int
    channels: int
    wide: int
    rows: int


class Bound(NamedTuple):
    """A compiled kernel, and what picks its arguments, in its order, from those of a pass."""

    kernel: Any
    picked: Callable[[list[Any]], tuple[Any, ...]]


class Pass(NamedTuple):
    """One kernel: its name, what a call brings, in this order, what all calls that look alike share, its programs."""

    kernel: str
    given: tuple[str, ...]
    numbers: dict[str, int]
    programs: int


@dataclass(frozen=True)
class Setup:
    """Of all calls that look alike: the passes there and back. `pieces` programs share the sums of a head, over
    `numbers` numbers of constants. `bound`: what was compiled, by the dtypes and alignment of what a call brings.
    """

    key: str
    there: Pass
    back: Pass
    pieces: int
    numbers: int
    bound: dict[tuple[object, ...], Bound] = field(default_factory=dict[tuple[object, ...], Bound])

    @cached_property
    def module(self) -> Any:
        """The generated module."""
        return modules.load("entry", generation.source(sections(self.key)))

    def launch(self, use: Pass, tensors: Sequence[Tensor]) -> None:
        """Run a pass. What the first launch compiled is run again as it is, without Triton's own lookup."""
        grid, values = (use.programs, 1, 1), [*tensors, *use.numbers.values()]
        key = (use.kernel, *[(tensor.dtype, tensor.data_ptr() % ALIGNED == 0) for tensor in tensors])
        known = self.bound.get(key)
        if known is not None:
            known.kernel[grid](*known.picked(values))
            return
        function = getattr(self.module, use.kernel)
        names = (*use.given, *use.numbers)
        kernel = function[grid](**dict(zip(names, values, strict=True)), num_warps=WARPS)
        if kernel is not None:  # under the interpreter nothing is compiled
            self.bound[key] = Bound(kernel, itemgetter(*map(names.index, function.arg_names)))


def setup_of(key: str, raws: Sequence[Tensor]) -> Setup:
    """The setup of a call."""
    return setup(key, tuple([raw.shape for raw in raws]), tuple([raw.stride() for raw in raws]), raws[0].device)


@lru_cache(maxsize=4096)
def setup(key: str, shapes: tuple[Shape, ...], strides: tuple[Shape, ...], device: torch.device) -> Setup:
    """The setup for raw operands that lie so; a compiled kernel is that of one `device`."""
    del device  # a part of the key alone
    found = sections(key)
    extents = tuple(_extent(section, shape) for section, shape in zip(found, shapes, strict=True))
    tokens = shapes[0][0] * shapes[0][1]
    sizes = {"T": shapes[0][1], "tokens": tokens}
    for section, extent, given in zip(found, extents, strides, strict=True):
        lying = given if section.channel else (*given[:2], 0, given[2])
        named = zip((*generation.SIZES, *generation.STRIDES), (*extent, *lying), strict=True)
        sizes |= {f"{name}_{section.name}": size for name, size in named}
    stretch = _stretch(found, extents, tokens)
    places, numbers = _places(found, shapes)
    pieces = -(-tokens // stretch)
    shares = [-(-tokens // extent.rows) * extent.heads for extent in extents]
    summed = [
        share if _is_vector(section) else pieces * extent.heads
        for section, extent, share in zip(found, extents, shares, strict=True)
    ]
    raws, constants = _names(found, "raw"), tuple(f"{name}_{each.name}" for each in found for name in each.constants)
    there = Pass("enter", (*raws, *constants, *_names(found, "made")), sizes, sum(shares))
    gradients = (*_names(found, "d_made"), *_names(found, "d_raw"), "partial")
    sums = places | {"numbers": numbers, "stretch": stretch}
    back = Pass("leave", (*raws, *constants, *gradients), sizes | sums, sum(summed))
    return Setup(key, there, back, pieces, numbers)


def enter(setup: Setup, raws: Sequence[Tensor], constants: Sequence[Tensor]) -> list[Tensor]:
    """The operands of the sections: vectors in the dtype of what came, gates in float32."""
    made = new_operands(setup.key, raws)
    if setup.there.programs:
        setup.launch(setup.there, [*raws, *[constant.contiguous() for constant in constants], *made])
    return made


def leave(
    setup: Setup, raws: Sequence[Tensor], constants: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """The gradient of every raw operand in its dtype, and of all constants in one row of float32."""
    found = [torch.empty_like(raw, memory_format=torch.contiguous_format) for raw in raws]
    partial = raws[0].new_empty((setup.pieces, setup.numbers), dtype=torch.float32)
    if setup.back.programs:
        given = [each.contiguous().resolve_neg() for each in (*constants, *gradients)]
        setup.launch(setup.back, [*raws, *given, *found, partial])
    return found, partial.view(-1) if setup.pieces == 1 or not setup.numbers else partial.sum(0)


def new_operands(key: str, raws: Sequence[Tensor]) -> list[Tensor]:
    """Empty operands."""
    wide = torch.float32
    return [
        raw.new_empty(raw.shape, dtype=raw.dtype if _is_vector(section) else wide)
        for section, raw in zip(sections(key), raws, strict=True)
    ]


def apart(row: Tensor, constants: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of all constants, in their shapes and dtypes, from the row that holds them."""
    found: list[Tensor] = []
    start = 0
    for constant in constants:
        piece = row[start : start + constant.numel()]
        found.append(piece.view(constant.shape).to(constant.dtype))
        start += constant.numel()
    return found


def _names(found: Sequence[Section], role: str) -> tuple[str, ...]:
    return tuple(f"{role}_{section.name}" for section in found)


def _extent(section: Section, shape: Shape) -> Extent:
    """Gates of one number a head have the heads as their channels."""
    heads, channels = shape[2:] if section.channel else (1, shape[2])
    wide = 1 << (channels - 1).bit_length()
    return Extent(heads, channels, wide, min(max(TILE // wide, 1), MOST))


def _places(found: Sequence[Section], shapes: Sequence[Shape]) -> tuple[dict[str, int], int]:
    """Where each constant's gradient begins in the row of all, and how long that is."""
    places: dict[str, int] = {}
    numbers = 0
    for section, shape in zip(found, shapes, strict=True):
        for name in section.constants:
            places[f"{name}_at_{section.name}"] = numbers
            numbers += shape[2] * (shape[3] if name == "bias" and section.channel else 1)
    return places, numbers


def _stretch(found: Sequence[Section], extents: Sequence[Extent], tokens: int) -> int:
    """Tokens of a program that sums: a multiple of every tile's."""
    gates = [extent for section, extent in zip(found, extents, strict=True) if not _is_vector(section)]
    rows = max([extent.rows for extent in gates], default=1)
    heads = max([extent.heads for extent in gates], default=1)
    share = min(-(-tokens // max(PROGRAMS // heads, 1)), LONGEST)
    return rows * max(-(-share // rows), 1)


def _is_vector(section: Section) -> bool:
    return isinstance(section.entry, VectorEntry)
