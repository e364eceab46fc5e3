"""The holes of `gradients_strong`: rows of all tokens as one tile [C, BK] or [R, BK]."""

from __future__ import annotations

from collections.abc import Sequence

from archsearch.kernels.triton.channel.quads import has_signs, place_of, places_of_writes, sees_own
from archsearch.kernels.triton.expressions import pointers_of
from archsearch.kernels.triton.gradients.streams import joined
from archsearch.kernels.triton.serial_rows import span
from archsearch.lowering import NormalForm

PLACES = "query_token, query_here, head, channel"


def strong_holes(form: NormalForm) -> dict[str, str]:
    """The holes of `gradients_strong` that other kernels do not have."""
    residuals, writes = _places(form, "residual"), _places(form, "write")
    mixed = writes
    if any(row.residual for row in form.rows) and residuals != writes:
        mixed = f"tl.where(late, {residuals or '1.0'}, {writes or '1.0'})"
    return {
        "points": str(len(form.decays)),
        "substeps": str(span(form).bit_length() - 1),
        "whole_read": _row(form, "read_row", form.read.decays),
        "whole_writes": _rows(form, "write"),
        "whole_residuals": _rows(form, "residual"),
        "read_place": _times(_left(form, 0, form.read.decays)),
        "write_places": _times(writes),
        "residual_places": _times(residuals),
        "mixed_places": _times(mixed),
        "own_gradients": _own_gradients(form),
        "whole_turn_back": _turn_back(form),
    }


def _side_by_side(form: NormalForm, texts: Sequence[str], idle: str) -> str:
    """One tile whose rows are those of a tile for each substep in turn; `idle` for substeps that are not used."""

    def alternated(texts: list[str]) -> str:
        if len(texts) == 1:
            return texts[0]
        return f"woven({alternated(texts[0::2])}, {alternated(texts[1::2])})"

    return alternated([*texts, *[idle] * (span(form) - len(texts))])


def _times(text: str) -> str:
    return f" * {text}" if text else ""


def _left(form: NormalForm, first: int, last: int) -> str:
    """What the decay points first .. last - 1 of every token leave [C, BK]; empty where there are none."""
    if first >= last:
        return ""
    if (first, last) == (0, len(form.decays)):
        return "left"
    return f"tl.exp(log_between({PLACES}, {pointers_of(form)}, {first}, {last}, HV, K))"


def _places(form: NormalForm, role: str) -> str:
    """What decays leave between a row's place and its token's start, of writes its end; empty where none act there."""
    texts: list[str] = []
    for s, used in enumerate(_used(form, role)):
        place = place_of(form, s, role)
        between = (0, place) if role == "residual" else (place, len(form.decays))
        texts.append(_left(form, *between) if used else "")
    return _weights(form, texts)


def _weights(form: NormalForm, texts: Sequence[str]) -> str:
    """The weights of rows in one tile; empty where all are 1."""
    return _side_by_side(form, [text or "one" for text in texts], "one") if any(texts) else ""


def _row(form: NormalForm, function: str, place: int) -> str:
    """A row of every token, turned by the sign of the decays before it."""
    return f"{function}({PLACES}, {pointers_of(form)}, H, HV, K)" + _times(_turn(form, place))


def _used(form: NormalForm, role: str) -> list[bool]:
    """Whether the row of each substep has a residual, or a write."""
    return [bool(row.residual if role == "residual" else row.write) for row in form.rows]


def _rows(form: NormalForm, role: str) -> str:
    texts = [
        _row(form, f"{role}_row_{s}", place_of(form, s, role)) if used else "nothing"
        for s, used in enumerate(_used(form, role))
    ]
    return _side_by_side(form, texts, "nothing")


def _turn(form: NormalForm, place: int) -> str:
    """The sign since the chunk's start at a place of every token; empty where decays have none."""
    if not has_signs(form):
        return ""
    if place == 0:
        return "turned"
    if place == len(form.decays):
        return "(turned * turn)"
    return f"(turned * turn_between({PLACES}, {pointers_of(form)}, 0, {place}, HV, K))"


def _turn_back(form: NormalForm) -> str:
    """Gradients of rows before they were turned."""
    if not has_signs(form):
        return "pass"
    lines: list[str] = []
    for role in ("residual", "write"):
        if role == "write" or any(row.residual for row in form.rows):
            turns = [_turn(form, place_of(form, s, role)) for s in range(len(form.rows))]
            lines.append(f"d_{role} *= {_side_by_side(form, turns, 'one')}")
    return joined([*lines, f"d_read *= {_turn(form, form.read.decays)}"])


def _own_gradients(form: NormalForm) -> str:
    """The gradients that pass between rows of one token, for each place of writes among its decays."""
    places = places_of_writes(form)
    return joined(line for place in places for line in _own_place(form, place, alone=len(places) == 1))


def _own_place(form: NormalForm, place: int, *, alone: bool) -> list[str]:
    mine = " | ".join(f"(sub == {s})" for s, row in enumerate(form.rows) if row.write and row.decays == place)
    column, row = ("", "") if alone else (f" & ({mine})[None, :]", f" & ({mine})[:, None]")
    read = _times(_left(form, place, form.read.decays))
    seen = f"tl.where(own_read{column}, pairs_read, 0.0)"
    written = f"tl.where(own_write{row}, pairs_written, 0.0)"
    lines = [
        f"d_read += product({seen}, writes, DT, PRECISION){read}",
        f"d_write += product({written}, asking{read}, DT, PRECISION)",
    ]
    if not sees_own(form):
        return lines
    left = _times(_weights(form, [_left(form, place, place_of(form, s, "residual")) for s in range(len(form.rows))]))
    return [
        *lines,
        f"d_residual += product(tl.where(below{column}, pairs, 0.0), writes, DT, PRECISION){left}",
        f"d_write += product(tl.where(above{row}, pairs, 0.0), residuals{left}, DT, PRECISION)",
    ]
