"""The kernels of an entry run over buffers: raw operands to operands, and gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archsearch.kernels.entry import VectorEntry
from archsearch.kernels.triton import modules
from archsearch.kernels.triton.entry import generation
from archsearch.kernels.triton.entry.sections import Section, sections
from archsearch.kernels.triton.launcher import Launcher

Shape = tuple[int, ...]
TILE = 4096
"""Numbers of a tile: 32 a thread of four warps."""
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


@dataclass(frozen=True)
class Setup:
    """Of all calls that look alike. `sizes`: what both kernels take that is no tensor, `back` what the one back takes
    besides; `programs` of either; `pieces` programs share the sums of a head, over `numbers` numbers of constants.
    """

    key: str
    sections: tuple[Section, ...]
    sizes: dict[str, int]
    back: dict[str, int]
    programs: tuple[int, int]
    pieces: int
    numbers: int

    @cached_property
    def launch(self) -> Launcher:
        """The kernels of the generated module, by name."""
        return Launcher(modules.load("entry", generation.source(self.sections)))

    @cached_property
    def constants(self) -> tuple[str, ...]:
        """Their names in the kernels, in the order of a call."""
        return tuple(f"{name}_{section.name}" for section in self.sections for name in section.constants)


def setup_of(key: str, raws: Sequence[Tensor]) -> Setup:
    """The setup of a call."""
    return setup(key, tuple(tuple(raw.shape) for raw in raws), tuple(raw.stride() for raw in raws))


@lru_cache(maxsize=4096)
def setup(key: str, shapes: tuple[Shape, ...], strides: tuple[Shape, ...]) -> Setup:
    """The setup for raw operands that lie so."""
    found = sections(key)
    extents = tuple(_extent(section, shape) for section, shape in zip(found, shapes, strict=True))
    tokens = shapes[0][0] * shapes[0][1]
    stretch = _stretch(found, extents, tokens)
    sizes = {"T": shapes[0][1], "tokens": tokens, "num_warps": WARPS}
    for section, extent, given in zip(found, extents, strides, strict=True):
        lying = given if section.channel else (*given[:2], 0, given[2])
        named = zip((*generation.SIZES, *generation.STRIDES), (*extent, *lying), strict=True)
        sizes |= {f"{name}_{section.name}": size for name, size in named}
    places, numbers = _places(found, shapes)
    pieces = -(-tokens // stretch)
    every = list(zip(found, extents, strict=True))
    there = sum(-(-tokens // extent.rows) * extent.heads for _, extent in every)
    back = sum((-(-tokens // e.rows) if _is_vector(section) else pieces) * e.heads for section, e in every)
    return Setup(key, found, sizes, places | {"numbers": numbers, "stretch": stretch}, (there, back), pieces, numbers)


def enter(setup: Setup, raws: Sequence[Tensor], constants: Sequence[Tensor]) -> list[Tensor]:
    """The operands of the sections: vectors in the dtype of what came, gates in float32."""
    made = new_operands(setup.key, raws)
    there, _ = setup.programs
    if there:
        setup.launch("enter", (there, 1, 1), _given(setup, raws, constants) | _named(setup, "made", made))
    return made


def leave(
    setup: Setup, raws: Sequence[Tensor], constants: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """The gradient of every raw operand in its dtype, and of all constants in one row of float32."""
    found = [torch.empty_like(raw, memory_format=torch.contiguous_format) for raw in raws]
    partial = raws[0].new_empty((setup.pieces, setup.numbers), dtype=torch.float32)
    _, back = setup.programs
    if back:
        gradients = [gradient.contiguous() for gradient in gradients]
        given = _given(setup, raws, constants) | _named(setup, "d_made", gradients) | _named(setup, "d_raw", found)
        setup.launch("leave", (back, 1, 1), given | setup.back | {"partial": partial})
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


def _given(setup: Setup, raws: Sequence[Tensor], constants: Sequence[Tensor]) -> dict[str, Any]:
    lying = {name: constant.contiguous() for name, constant in zip(setup.constants, constants, strict=True)}
    return setup.sizes | _named(setup, "raw", raws) | lying


def _named(setup: Setup, role: str, tensors: Sequence[Tensor]) -> dict[str, Any]:
    return {f"{role}_{section.name}": tensor for section, tensor in zip(setup.sections, tensors, strict=True)}


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
