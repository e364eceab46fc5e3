"""Lines of the serial kernels that make P where `solve` makes none: of their tiles, and of numbers a token."""

from __future__ import annotations

from archsearch.kernels.triton.serial_rows import factors_of, rows_of, solves
from archsearch.lowering import NormalForm

NEAR = ("log_read", "log_write", "near_read", "near_write")
"""The factors that P takes besides those of reads and writes."""


def pair_lines(form: NormalForm) -> list[str]:
    """P [C, C]: what the reads of a chunk's tokens take from the targets of its one row; none where P is loaded."""
    if solves(form):
        return []
    (row,), rows = form.rows, rows_of(form)
    if not rows.read or not rows.write[0]:
        return ["given_0 = tl.zeros((C, C), tl.float32)"]
    ((query, _),), (((key, _),),) = rows.read, rows.write
    pairs = f"product(tile_{query}, tl.trans(tile_{key}), DT, PRECISION)"
    pairs += _number(form, "read", ":, None") + _number(form, "write", "None, :")
    visible = "places[None, :] < places[:, None]" + (" + 1" if row.stage < form.read.stage else "")
    if not form.decays:
        return [f"given_0 = tl.where({visible}, {pairs}, 0.0).to(DT)"]
    write = "f_log_read_0_0" if row.decays == form.read.decays else "f_log_write_0_0"
    between = f"f_log_read_0_0[:, None] - {write}[None, :]"
    return [
        f"near = tl.exp2(tl.where({visible}, {between}, float('-inf')))",
        f"given_0 = ({pairs} * near).to(DT)",
    ]


def _number(form: NormalForm, role: str, index: str) -> str:
    """What scales the rows or columns of P besides decays."""
    name = f"near_{role}_0_0"
    if any(each.name == name for each in factors_of(form)):
        return f" * f_{name}[{index}]"
    return " * scale" if role == "read" else ""
