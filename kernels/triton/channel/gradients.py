"""How the gradients of a quad's rows pass back through decays, signs and the rows of their own token."""

from __future__ import annotations

from archsearch.kernels.triton.channel.quads import (
    TOKENS,
    has_signs,
    left_before,
    left_behind,
    left_between,
    own_tiles,
    place_of,
    places_of_writes,
    sees_own,
    turn_text,
    woven,
)
from archsearch.kernels.triton.gradients.streams import joined
from archsearch.kernels.triton.serial_rows import span
from archsearch.lowering import NormalForm


def place_weights(form: NormalForm) -> str:
    """What decays leave between a row and its token's start or end, for the gradients of rows."""
    lines: list[str] = []
    rows = [(s, row) for s, row in enumerate(form.rows)]
    for name, texts in (
        ("d_residual", [[left_before(form, s, r) if row.residual else "" for s, row in rows] for r in TOKENS]),
        ("d_write", [[left_behind(form, s, r) if row.write else "" for s, row in rows] for r in TOKENS]),
        ("d_read", [[left_between(form, r, 0, form.read.decays)] for r in TOKENS]),
    ):
        if any(text for token in texts for text in token):
            padding = 0 if name == "d_read" else span(form) - len(rows)
            filled = [[*(text or "one" for text in token), *["one"] * padding] for token in texts]
            lines.append(f"{name} *= stacked({woven(filled)}, BLOCKS)")
    return joined(lines)


def turn_back(form: NormalForm) -> str:
    """Gradients of rows before they were turned."""
    if not has_signs(form):
        return "pass"
    rows = range(len(form.rows))
    padding = ["one"] * (span(form) - len(rows))
    lines: list[str] = []
    for role in ("residual", "write"):
        if role == "write" or any(row.residual for row in form.rows):
            turns = [[*(turn_text(form, r, place_of(form, s, role)) for s in rows), *padding] for r in TOKENS]
            lines.append(f"d_{role} *= {woven(turns)}")
    lines.append(f"d_read *= {woven([[turn_text(form, r, form.read.decays)] for r in TOKENS])}")
    return joined(lines)


def own_gradients(form: NormalForm) -> str:
    """The gradients that pass between rows of one token."""
    lines: list[str] = []
    places = places_of_writes(form)
    for place in places:
        writes, asks, reads = own_tiles(form, place)
        mine = " | ".join(
            f"(near_rows % SPAN == {s})" for s, row in enumerate(form.rows) if row.write and row.decays == place
        )
        own = f" & ({mine})[None, :, None]" if len(places) > 1 else ""
        read_weight = [[left_between(form, r, place, form.read.decays) or "one"] for r in TOKENS]
        lines.append(f"own = stacked(({writes}).to(DT), BLOCKS)")
        grown = "stacked_sum(tl.where(own_read, near_read, 0.0), own, DT, PRECISION)"
        plain = all(text == ["one"] for text in read_weight)
        lines.append(f"d_read += {grown}" + ("" if plain else f" * stacked({woven(read_weight)}, BLOCKS)"))
        asked = f"stacked(({reads}).to(DT), BLOCKS)"
        lines.append(f"d_write += stacked_sum(tl.where(own_write{own}, near_written, 0.0), {asked}, DT, PRECISION)")
        if sees_own(form):
            weights = [
                [*(left_between(form, r, place, place_of(form, s, "residual")) or "one" for s in range(len(form.rows))),
                 *["one"] * (span(form) - len(form.rows))]
                for r in TOKENS
            ]  # fmt: skip
            grown = "stacked_sum(tl.where(own_row & below, near_pairs, 0.0), own, DT, PRECISION)"
            plain = all(text == "one" for token in weights for text in token)
            lines.append(f"d_residual += {grown}" + ("" if plain else f" * stacked({woven(weights)}, BLOCKS)"))
            above = f"tl.where(own_row & above{own}, near_pairs, 0.0)"
            lines.append(f"d_write += stacked_sum({above}, stacked(({asks}).to(DT), BLOCKS), DT, PRECISION)")
    return joined(lines)
