"""The products that rows, reads and writes exchange over the tiles, and the dots of gradients with base vectors."""

from __future__ import annotations

from collections.abc import Iterator

from archsearch.kernels.triton.adjoint import learned_decay
from archsearch.kernels.triton.expressions import pointers_of
from archsearch.kernels.triton.gradients.streams import (
    ROLES,
    Tile,
    dot_text,
    factor_name,
    folds_writes,
    has_dot,
    index_of,
    scaled,
    streams_in,
)
from archsearch.lowering import NormalForm


def factor_lines(form: NormalForm) -> Iterator[str]:
    """The numbers [R] or [C] that scale the base vectors of every stream."""
    for role, t, stream in streams_in(form, ROLES):
        places = "query_token, query_place, query_here" if role == "read" else "token, sub, here"
        if not stream.plain:
            yield f"{role}_f{t} = {role}_scale_{t}({places}, head, {pointers_of(form)}, HV)"


def folded_lines(form: NormalForm) -> Iterator[str]:
    """The numbers that scale the writes made safe to divide by, and taken into what the state's gradient gives."""
    if folds_writes(form):
        yield "write_f0 = away_from_zero(write_f0)"
        if form.decays:
            yield "write_out *= write_f0"


def transposed_lines(form: NormalForm, tiles: list[Tile]) -> Iterator[str]:
    """What rows that see the state give to the write addresses: a product a tile that they are made of.

    `+ zero` keeps a product from summing into the one before it: of products in a chain, Triton has every group of four
    warps compute all rows.
    """
    for tile in tiles:
        weights = [
            scaled("d_gram" if role == "read" else "d_lower", factor_name(form, role, t, stream), ":, None")
            for role, t, stream in streams_in(form, ("residual", "read"))
            if stream.bases == tile
        ]
        yield f"d_write += product(tl.trans({' + '.join(weights)}), tile_{index_of(form, tile)}, DT, PRECISION) + zero"


def straight_lines(form: NormalForm, role: str, gram: str) -> Iterator[str]:
    """What the write addresses give to the rows of a role."""
    for _, u, stream in streams_in(form, ("write",)):
        weights = scaled(gram, factor_name(form, "write", u, stream), "None, :")
        yield f"d_{role} += product({weights}, tile_{index_of(form, stream.bases)}, DT, PRECISION)"


def fresh_lines(form: NormalForm) -> Iterator[str]:
    """What the loop over one pass leaves must have a name before it."""
    for role, t, stream in streams_in(form, ROLES):
        if has_dot(form, stream):
            yield f"dot_{role}_{t} = tl.zeros(({'C' if role == 'read' else 'R'},), tl.float32)"
    if learned_decay(form):
        yield "edge_rows = tl.zeros((R,), tl.float32)"


def dot_lines(form: NormalForm, role: str) -> Iterator[str]:
    """The dots of a role that anything needs."""
    for _, t, stream in streams_in(form, (role,)):
        if has_dot(form, stream):
            yield f"dot_{role}_{t} = {dot_text(form, role, stream)}"


def state_lines(form: NormalForm) -> Iterator[str]:
    """What the writes of the chunk add to the inner product of the state that leaves it and its gradient.

    The dot that is added 0 times gives the sum its layout, without which a whole tile would be laid out anew.
    """
    if not learned_decay(form):
        return
    for role, t, stream in streams_in(form, ("write",)):
        name = factor_name(form, role, t, stream)
        yield f"edge_rows {'+=' if t else '='} {dot_text(form, role, stream)}" + ("" if name is None else f" * {name}")
    if any(row.residual for row in form.rows):
        yield "edge_rows += dot_residual_0 * zero"
