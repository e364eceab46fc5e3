"""The holes of the two serial kernels, which see only tiles of rows and the numbers that scale them.

Where heads decay as one, tiles are base vectors and their numbers come from `solve` as factors; where channels decay,
tiles are the kept rows, decayed and scaled. A token's rows stand one after another, so that every tile is one block of
memory: row r of a chunk's token i is row r C + i.
"""

from __future__ import annotations

from archsearch.kernels.triton.serial_loads import (
    factor_loads,
    given_loads,
    lines,
    serial_pointers,
    solved_loads,
    tile_lines,
    tile_loads,
    value_loads,
    value_tiles,
    without,
)
from archsearch.kernels.triton.serial_pairs import NEAR, pair_lines
from archsearch.kernels.triton.serial_products import (
    d_deltas,
    d_targets,
    d_update,
    delta_stores,
    deltas,
    errors,
    output,
    seen,
    target_stores,
    update,
)
from archsearch.kernels.triton.serial_rows import kept_value, rows_of, side_by_side, solves, tile_names
from archsearch.lowering import NormalForm


def serial_holes(form: NormalForm) -> dict[str, str]:
    """The holes of `scan` and `reverse`.

    Loads of tiles that products take from shared memory stand one after another, nothing between them that uses one:
    they are waited for once. What goes through registers is loaded where it is used, or it would fill them.
    """
    rows = rows_of(form)
    moving = tile_names((*rows.residual, *rows.write))
    reading = without(tile_names((rows.read,)), moving)
    unseen = without(tile_names((rows.read,)), tile_names(rows.residual))
    together = side_by_side(form)
    solved = solved_loads(rows, together=together)
    given = given_loads(rows, together=together) if solves(form) else []
    near = () if solves(form) else NEAR
    turned = tile_names((*rows.write, *rows.residual, rows.read))
    return {
        "serial_sizes": "T, NT" if solves(form) else "scale, T, NT",
        "serial_pointers": ", ".join(serial_pointers(form)),
        "scan_loads": lines(tile_loads(form, moving), solved),
        "scan_read_loads": lines(tile_loads(form, reading), given),
        "scan_targets": lines(value_loads(form), value_tiles(form)),
        "scan_tiles": lines(tile_lines(form, moving)),
        "scan_pairs": lines(tile_lines(form, reading), factor_loads(form, near), pair_lines(form)),
        "scan_read_tiles": lines(tile_lines(form, reading) if solves(form) else [], factor_loads(form, ("read",))),
        "reverse_loads": lines(tile_loads(form, turned), solved, given),
        "scan_seen": lines(seen(tile_names(rows.residual), "low")),
        "scan_errors": lines(factor_loads(form, ("residual", "target")), errors(rows)),
        "scan_deltas": lines(deltas(rows, together=together)),
        "scan_update": lines(factor_loads(form, ("write",)), update(rows)),
        "scan_output": lines(seen(unseen, "low"), output(rows, together=together)),
        "first_left": _left(form, "left", "begin * HV + head", "begin < end"),
        "last_left": _left(form, "left", "(end - 1) * HV + head", "begin < end"),
        "next_left": _left(form, "ahead", "slot + HV", "at_chunk + 1 < end"),
        "previous_left": _left(form, "ahead", "slot - HV", "at_chunk + 1 < end"),
        "scan_through": _through(form),
        "scan_carry": _carry(form, "state"),
        "reverse_carry": _carry(form, "d_state"),
        "scan_save": "pass" if kept_value(form) else lines(delta_stores(len(form.rows))),
        "reverse_tiles": lines(tile_lines(form, turned)),
        "reverse_deltas": lines(seen(tile_names(rows.write), "low"), factor_loads(form, ("write",)), d_deltas(rows)),
        "reverse_pairs": lines(factor_loads(form, near), pair_lines(form)),
        "reverse_targets": lines(d_targets(rows, together=together)),
        "reverse_update": lines(factor_loads(form, ("residual", "read")), d_update(rows)),
        "reverse_save": lines(target_stores(len(form.rows))),
    }


def _left(form: NormalForm, name: str, slot: str, here: str) -> str:
    """One number a chunk is asked for a chunk ahead; among the tiles it would be one more thing to wait for."""
    return f"{name} = tl.load(carry + {slot}, mask={here}, other=1.0)" if form.decay_kind == "scalar" else "pass"


def _through(form: NormalForm) -> str:
    """What a piece's decays leave of a state that enters it."""
    match form.decay_kind:
        case "none":
            return "pass"
        case "scalar":
            return "through *= left"
        case _:
            return f"through *= {_left_of_channels()}"


def _left_of_channels() -> str:
    return "tl.load(carry + slot.to(tl.int64) * K + channel, mask=channel < K, other=1.0)"


def _carry(form: NormalForm, state: str) -> str:
    """What the chunk's decays leave of a state [BV, K]."""
    match form.decay_kind:
        case "none":
            return "pass"
        case "scalar":
            return f"{state} *= left\nleft = ahead"
        case _:
            return f"{state} *= {_left_of_channels()}[None, :]"
