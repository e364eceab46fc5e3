"""Lines of the serial kernels that multiply: what the state gives, D, the state's update, and their way back."""

from __future__ import annotations

from collections.abc import Sequence

from archsearch.kernels.triton.serial_loads import apart, beside
from archsearch.kernels.triton.serial_rows import Rows, tile_names
from archsearch.kernels.triton.text import sum_text


def seen(names: Sequence[str], state: str) -> list[str]:
    """What a state [BV, K] holds at every row of a tile: [BV, C]."""
    return [f"seen_{name} = product({state}, tl.trans(tile_{name}), DT, PRECISION)" for name in names]


def _scaled(text: str, factor: str | None) -> str:
    return text if factor is None else f"{text} * f_{factor}[None, :]"


def errors(rows: Rows) -> list[str]:
    """u - S^T a of every row, transposed [BV, C]."""
    lines: list[str] = []
    for r, (target, residual) in enumerate(zip(rows.target, rows.residual, strict=True)):
        wanted = [_scaled(f"tl.trans(target_{name}).to(tl.float32)", factor) for name, factor in target]
        recalled = [_scaled(f"seen_{name}", factor) for name, factor in residual]
        lines.append(f"error_{r} = {sum_text(wanted) or 'tl.zeros((BV, C), tl.float32)'}")
        lines += [f"error_{r} -= {each}" for each in recalled]
    return lines


def deltas(rows: Rows, *, together: bool) -> list[str]:
    """D = T W, at once or block by block; a row without a residual keeps its target."""
    count = len(rows.residual)
    if together:
        lines = [f"errors = {beside('error', count)}.to(DT)"]
        lines.append("delta = product(errors, tl.trans(solved), DT, PRECISION)")
        return [*lines, *apart("delta", "delta", count)]
    lines: list[str] = []
    for r, residual in enumerate(rows.residual):
        if not residual:
            lines.append(f"delta_{r} = error_{r}")
            continue
        for j in range(count):
            term = f"product(error_{j}, tl.trans(solved_{r}_{j}), DT, PRECISION)"
            lines.append(f"delta_{r} = {term}" if j == 0 else f"delta_{r} += {term}")
    return lines


def update(rows: Rows) -> list[str]:
    """S <- S + sum of b D^T, one product a base vector."""
    lines: list[str] = []
    for name in tile_names(rows.write):
        weights = [
            _scaled(f"delta_{r}", factor) for r, row in enumerate(rows.write) for other, factor in row if other == name
        ]
        lines.append(f"state += product({sum_text(weights)}, tile_{name}, DT, PRECISION)")
    return lines


def output(rows: Rows, *, together: bool) -> list[str]:
    """o = S^T q + (P T) W."""
    seen = [_scaled(f"seen_{name}", factor) for name, factor in rows.read]
    lines = [f"result = {sum_text(seen) or 'tl.zeros((BV, C), tl.float32)'}"]
    if together:
        return [*lines, "result += product(errors, tl.trans(given), DT, PRECISION)"]
    for r in range(len(rows.write)):
        lines.append(f"result += product(error_{r}, tl.trans(given_{r}), DT, PRECISION)")
    return lines


def delta_stores(count: int) -> list[str]:
    """Tiles [BV, C] written as the rows [C, V] of a slot."""
    rows = [f"(slot * SPAN + {r}) * C" for r in range(count)]
    return [
        f"store_rows(deltas, 0, {row}, 0, {row}, places < C, block * BV, delta_{r}, V, V, C, BV, TMA)"
        for r, row in enumerate(rows)
    ]


def target_stores(count: int) -> list[str]:
    """Tiles [BV, C] written as the tokens' rows of [rows, tokens, HV, V]."""
    lines: list[str] = []
    for r in range(count):
        at = f"{r} * sequences + sequence, first, head, ({r} * tokens + start) * HV + head"
        lines.append(f"store_rows(d_targets, {at}, here, block * BV, d_target_{r}, HV * V, V, C, BV, TMA)")
    return lines


def d_deltas(rows: Rows) -> list[str]:
    """What the leaving state's gradient holds at b, transposed: dD without the share of this chunk's reads."""
    lines: list[str] = []
    for r, write in enumerate(rows.write):
        terms = [_scaled(f"seen_{name}", factor) for name, factor in write]
        lines.append(f"d_delta_{r} = {sum_text(terms) or 'tl.zeros((BV, C), tl.float32)'}")
    return lines


def d_targets(rows: Rows, *, together: bool) -> list[str]:
    """dW = (P T)^T dO + T^T dD; rows without a residual have the unit column of T."""
    if together:
        count = len(rows.residual)
        return [
            "d_target = product(d_out, given, DT, PRECISION)",
            f"d_target += product({beside('d_delta', count)}, solved, DT, PRECISION)",
            *apart("d_target", "d_target", count),
        ]
    lines: list[str] = []
    for r, own in enumerate(rows.residual):
        terms = [f"product(d_out, given_{r}, DT, PRECISION)"]
        terms += [
            f"product(d_delta_{j}, solved_{j}_{r}, DT, PRECISION)"
            for j, residual in enumerate(rows.residual)
            if residual
        ]
        if not own:
            terms.append(f"d_delta_{r}")
        lines += [f"d_target_{r} {'=' if i == 0 else '+='} {term}" for i, term in enumerate(terms)]
    return lines


def d_update(rows: Rows) -> list[str]:
    """dS <- dS + q dO^T - sum of a dW^T, one product a base vector."""
    lines: list[str] = []
    for name in tile_names((*rows.residual, rows.read)):
        reads = [_scaled("d_out.to(tl.float32)", factor) for other, factor in rows.read if other == name]
        taken = [
            _scaled(f"d_target_{r}", factor)
            for r, row in enumerate(rows.residual)
            for other, factor in row
            if other == name
        ]
        text = sum_text(reads) + "".join(f" - {each}" for each in taken)
        lines.append(
            f"d_state += product({text.strip() if reads else '-' + sum_text(taken)}, tile_{name}, DT, PRECISION)"
        )
    return lines
