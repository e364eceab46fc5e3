"""The streams of a form: one base vector a row of the token with a number that scales it, and the tiles they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from archsearch.kernels.triton.adjoint import learned_decay
from archsearch.kernels.triton.gradients.push import gates_of
from archsearch.kernels.triton.serial_rows import streams_of
from archsearch.kernels.triton.streams import Base, Stream
from archsearch.lowering import NormalForm

Tile = tuple[Base | None, ...]
"""The base vectors of a tile of rows, one a row of the token; the read has one row."""
ROLES = ("write", "residual", "read")
ROWS = ("residual", "write")


def joined(lines: Iterable[str]) -> str:
    """Lines as the text of a hole."""
    return "\n".join(lines) or "pass"


def streams_in(form: NormalForm, roles: Iterable[str]) -> Iterator[tuple[str, int, Stream]]:
    """The streams of some roles, each with its role and its place there."""
    for role in roles:
        for t, stream in enumerate(streams_of(form, role)):
            yield role, t, stream


def tiles_of(form: NormalForm, role: str) -> list[Tile]:
    """The distinct tiles of a role."""
    return list(dict.fromkeys(stream.bases for stream in streams_of(form, role)))


def index_of(form: NormalForm, tile: Tile) -> int:
    """The number of a tile in generated code."""
    return list(dict.fromkeys(t for role in ROLES for t in tiles_of(form, role))).index(tile)


def has_several(form: NormalForm) -> bool:
    """Whether a token has more than one row."""
    return len(form.rows) > 1


def folds_writes(form: NormalForm) -> bool:
    """Whether what scales the writes is taken into d_lower, d_gram and d_write, which are then rounded once."""
    streams = streams_of(form, "write")
    return len(streams) == 1 and not streams[0].plain


def factor_name(form: NormalForm, role: str, t: int, stream: Stream) -> str | None:
    """What still scales a stream's base vectors."""
    return None if stream.plain or (role == "write" and folds_writes(form)) else f"{role}_f{t}"


def scaled(text: str, factor: str | None, index: str) -> str:
    """`text` times a factor a row or column."""
    return text if factor is None else f"{text} * {factor}[{index}]"


def has_dot(form: NormalForm, stream: Stream) -> bool:
    """Whether the dot of a stream is needed: for decays, or for gates in its factors."""
    return learned_decay(form) or any(factor and gates_of(factor) for factor in stream.factors)


def dot_text(form: NormalForm, role: str, stream: Stream) -> str:
    """The sum over channels of a stream's base vectors times the gradient of their rows."""
    return f"tl.sum(d_{role} * tile_{index_of(form, stream.bases)}.to(tl.float32), 1)"


def place_of(form: NormalForm, role: str, r: int) -> int:
    """How many of the token's decay points act before a row's use of the state."""
    if role == "read":
        return form.read.decays
    row = form.rows[r]
    return 0 if role == "residual" and row.previous else row.decays
