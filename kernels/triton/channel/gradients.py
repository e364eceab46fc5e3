"""How the gradients of a quad's rows pass back through signs."""

from __future__ import annotations

from archsearch.kernels.triton.channel.quads import TOKENS, has_signs, place_of, turn_text, woven
from archsearch.kernels.triton.gradients.streams import joined
from archsearch.kernels.triton.serial_rows import span
from archsearch.lowering import NormalForm


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
