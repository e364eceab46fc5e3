"""The holes of `gradients` and `numbers`: the base vectors that products take, and how gradients reach the operands.

Rows stand one after another: row r of a chunk's token i is row r C + i. A stream is one base vector a row of the token
with a number that scales it. A stream's dot is the sum over channels of its base vectors times the gradient of their
rows: all gradients of numbers and decays follow from the dots.
"""

from __future__ import annotations

from archsearch.kernels.triton.adjoint import numbers
from archsearch.kernels.triton.expressions import pointer
from archsearch.kernels.triton.gradients.numbers import load_lines, number_lines, store_lines, sums_of
from archsearch.kernels.triton.gradients.operands import (
    gradient_operands,
    push_holes,
    summed_gates,
    target_lines,
    target_offsets,
)
from archsearch.kernels.triton.gradients.products import (
    dot_lines,
    factor_lines,
    folded_lines,
    fresh_lines,
    state_lines,
    straight_lines,
    transposed_lines,
)
from archsearch.kernels.triton.gradients.streams import ROLES, folds_writes, has_several, joined, place_of, tiles_of
from archsearch.kernels.triton.gradients.tiles import tile_functions, tile_lines
from archsearch.kernels.triton.serial_rows import kept_value
from archsearch.lowering import NormalForm


def gradient_holes(form: NormalForm) -> dict[str, str]:
    """The holes of the template."""
    write, residual, read = (tiles_of(form, role) for role in ROLES)
    return {
        "gradient_functions": "".join(text + "\n\n\n" for text in tile_functions(form)),
        "gradient_totals": joined(f"total_{gate.name} = tl.zeros((C,), tl.float32)" for gate in summed_gates(form)),
        "gradient_numbers": joined(factor_lines(form)),
        "delta_rows": _delta_rows(form),
        "target_offsets": target_offsets(form),
        "push_targets": joined(target_lines(form)),
        "folded_writes": joined(folded_lines(form)),
        "log2e": "1.4426950408889634",
        "weighed": " * write_f0[None, :]" if folds_writes(form) else "",
        "write_weighed": " * write_f0[:, None]" if folds_writes(form) else "",
        "passes": "tl.static_range(1)" if has_several(form) else "tl.range(0, once, num_stages=2)",
        "fresh_dots": joined(fresh_lines(form)),
        "write_tiles": joined(tile_lines(form, write)),
        "write_state": joined(state_lines(form)),
        "residual_tiles": joined(tile_lines(form, [t for t in residual if t not in write])),
        "lower_products": joined(transposed_lines(form, [t for t in residual if t not in read])),
        "residual_products": joined(straight_lines(form, "residual", "d_lower")),
        "residual_dots": joined(dot_lines(form, "residual")),
        "read_tiles": joined(tile_lines(form, [t for t in read if t not in write and t not in residual])),
        "gram_products": joined(transposed_lines(form, read)),
        "write_dots": joined(dot_lines(form, "write")),
        "read_products": joined(straight_lines(form, "read", "d_gram")),
        "read_dots": joined(dot_lines(form, "read")),
        **push_holes(form),
        "gradient_pointers": ", ".join([*(f"g_{operand.name}" for operand in gradient_operands(form)), "sums"]),
        "number_pointers": ", ".join([*(f"g_{operand.name}" for operand in numbers(form)), "sums"]),
        "sums": str(len(sums_of(form))),
        "store_sums": joined(store_lines(form)),
        "load_sums": joined(load_lines(form)),
        "push_numbers": joined(number_lines(form)),
    }


def _delta_rows(form: NormalForm) -> str:
    """D as it was kept, or the value that it is."""
    value = kept_value(form)
    if value is None:
        return "rows_from(deltas, slot * (R * V), rows * V, here, first, target_channel, V, BV)"
    at = "value_row * V, place * (HV * V), here, first, target_channel, V, BV"
    return f"rows_from({pointer(value)}, {at})"


def in_one_place(form: NormalForm) -> bool:
    """Whether a token's one row and its read see the state after the same decays: then one matrix of decays serves."""
    return len(form.rows) == 1 and place_of(form, "residual", 0) == form.read.decays
