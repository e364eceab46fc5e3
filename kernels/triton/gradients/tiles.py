"""Tiles of base vectors, loaded."""

from __future__ import annotations

from collections.abc import Iterator

from archsearch.dsl import Operand
from archsearch.kernels.triton.expressions import pointer, pointers_of
from archsearch.kernels.triton.gradients.streams import ROLES, Tile, has_several, index_of, tiles_of
from archsearch.kernels.triton.serial_rows import span
from archsearch.kernels.triton.streams import Base
from archsearch.kernels.triton.text import function
from archsearch.lowering import NormalForm


def tile_lines(form: NormalForm, tiles: list[Tile]) -> Iterator[str]:
    """Loads of tiles."""
    for tile in tiles:
        places = "query_place, query_place, query_here" if _is_read(form, tile) else "place, sub, here"
        at = f"key_row, value_row, {places}, column, channel, {pointers_of(form)}, H, HV, K, BK"
        yield f"tile_{index_of(form, tile)} = tile_rows_{index_of(form, tile)}({at})"


def tile_functions(form: NormalForm) -> list[str]:
    """Loads of every tile; one row of the token out of all."""
    tiles = dict.fromkeys(t for role in ROLES for t in tiles_of(form, role))
    functions = [_tile_function(form, tile) for tile in tiles]
    if has_several(form):
        n = span(form)
        lines = [
            f"parts = tl.reshape(tile, ({n}, C, tile.shape[1]))",
            f"return tl.sum(tl.where((tl.arange(0, {n}) == row)[:, None, None], parts, 0.0), 0)",
        ]
        doc = "The rows [C, B] of a tile that are one row of every token."
        functions.append(function("row_tile", "tile, row: tl.constexpr, C: tl.constexpr", doc, lines))
        lines = [
            f"parts = tl.reshape(given, ({n}, C))",
            f"return tl.sum(tl.where((tl.arange(0, {n}) == row)[:, None], parts, 0.0), 0)",
        ]
        doc = "The numbers [C] of one row of every token."
        functions.append(function("row_numbers", "given, row: tl.constexpr, C: tl.constexpr", doc, lines))
    return functions


def _is_read(form: NormalForm, tile: Tile) -> bool:
    """Whether a tile has C rows where others have more."""
    return has_several(form) and len(tile) == 1


def _tile_function(form: NormalForm, tile: Tile) -> str:
    sizes = "H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, BK: tl.constexpr"
    parameters = f"key_row, value_row, place, sub, here, column, channel, {pointers_of(form)}, {sizes}"
    lines = _selected(tile) if len(tile) > 1 else [f"return {_base_text(base, 'here')}" for base in tile]
    return function(f"tile_rows_{index_of(form, tile)}", parameters, "Base vectors [N, BK] of the rows.", lines)


def _base_text(base: Base | None, here: str) -> str:
    assert base is not None
    texts = [_operand_text(operand, here) for operand in base.operands]
    return texts[0] if len(texts) == 1 else " * ".join(f"{text}.to(tl.float32)" for text in texts)


def _operand_text(operand: Operand, here: str) -> str:
    row, heads = ("key_row", "H") if operand.is_address else ("value_row", "HV")
    return f"rows_from({pointer(operand)}, {row} * K, place * ({heads} * K), {here}, column, channel, K, BK)"


def _selected(tile: Tile) -> list[str]:
    """Lines that load rows of several base vectors: one load where they are tensors of one kind, else a load each."""
    given = [(r, base) for r, base in enumerate(tile) if base is not None]
    apart: list[str] = []
    for r, base in given:
        apart.append(
            f"{'rows =' if not apart else 'rows +='} {_base_text(base, f'here & (sub == {r})')}.to(tl.float32)"
        )
    apart.append("return rows")
    if any(base.gates for _, base in given):
        return apart
    pointers = [pointer(base.vector) for _, base in given]
    chosen = pointers[0]
    for (r, _), name in zip(given[1:], pointers[1:], strict=True):
        chosen = f"tl.where(sub == {r}, {name}, {chosen})"
    alike = " and ".join(f"{name}.dtype == {pointers[0]}.dtype" for name in pointers[1:])
    found = "here" if len(given) == len(tile) else f"here & ({' | '.join(f'(sub == {r})' for r, _ in given)})"
    together = [
        f"x = {chosen if len(given) > 1 else f'tl.where(sub >= 0, {chosen}, {chosen})'} + (key_row * K + column)",
        "at = (x + place * (H * K))[:, None] + channel[None, :]",
        f"return tl.load(at, mask=({found})[:, None] & (column + channel < K)[None, :], other=0.0)",
    ]
    if not alike:
        return together
    return [f"if {alike}:", *("    " + line for line in together), "else:", *("    " + line for line in apart)]
