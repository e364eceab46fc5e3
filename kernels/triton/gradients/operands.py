"""From the gradients of rows to the operands with channels."""

from __future__ import annotations

from collections.abc import Iterator

from archsearch.dsl import Operand
from archsearch.kernels.triton.adjoint import tiled
from archsearch.kernels.triton.expressions import pointers_of
from archsearch.kernels.triton.gradients.push import Push
from archsearch.kernels.triton.gradients.streams import (
    ROLES,
    ROWS,
    Tile,
    factor_name,
    has_several,
    joined,
    scaled,
    streams_in,
    tiles_of,
)
from archsearch.kernels.triton.streams import bases
from archsearch.kernels.triton.strengths import plain_targets
from archsearch.lowering import NormalForm


def gradient_operands(form: NormalForm) -> tuple[Operand, ...]:
    """The operands with channels whose gradients `gradients` writes, in the order of its parameters."""
    plain = plain_targets(form)
    return tuple(operand for operand in tiled(form) if operand.name not in plain)


def target_offsets(form: NormalForm) -> str:
    """Where the gradients of the rows' targets stand, from that of the chunk's first token on."""
    return "(sub.to(tl.int64) * tokens + place) * (HV * V)" if has_several(form) else "place * (HV * V)"


def target_lines(form: NormalForm) -> list[str]:
    """From the gradients of targets to values and their gates."""
    push = Push("value")
    for r, row in enumerate(form.rows):
        if row.target:
            first = f"value_row * V + {r} * tl.cast(tokens, tl.int64) * (HV * V)"
            at = f"{first}, query_place * (HV * V), query_here, first, target_channel, V, BV"
            push.lines.append(f"grad = rows_from(d_targets, {at}).to(tl.float32)")
            push.expression(row.target, "grad")
    if form.read.bonus is not None:
        at = "value_row * V, query_place * (HV * V), query_here, first, target_channel, V, BV"
        push.lines.append(f"grad = rows_from(d_output, {at}).to(tl.float32)")
        push.lines.append("grad *= tl.load(bonus + slot * C + query_place)[:, None]")
        push.expression(form.read.bonus.target, "grad")
    push.store(form.operands, ())
    return ["for first in range(0, V, BV):", *("    " + line for line in push.lines)]


def push_holes(form: NormalForm) -> dict[str, str]:
    """From the gradients of rows and of the read to addresses and gates a channel."""
    push = Push("key")
    direct = _direct(form)
    for tile in direct:
        push.lines += _direct_lines(form, tile)
    for role, t, stream in streams_in(form, ROWS):
        if stream.bases in direct:
            continue
        grad = scaled(f"d_{role}", factor_name(form, role, t, stream), ":, None")
        for r, base in enumerate(stream.bases):
            if base is not None:
                push.base(base, f"row_tile({grad}, {r}, C)" if has_several(form) else grad)
    later = _read_operands(form)
    push.store(form.operands, later)
    rows = joined(push.lines)
    push.lines = []
    for role, t, stream in streams_in(form, ("read",)):
        base = stream.bases[0]
        assert base is not None
        push.base(base, scaled("d_read", factor_name(form, role, t, stream), ":, None"))
    push.lines += _bonus_lines(form, push)
    push.store(tuple(operand for operand in form.operands if operand.name in later), ())
    return {"push_rows": rows, "push_read": joined(push.lines)}


def _read_operands(form: NormalForm) -> frozenset[str]:
    """Operands of K channels to which the read or its bonus has something to give."""
    bonus = form.read.bonus
    parts = [form.read.address] if bonus is None else [form.read.address, bonus.weight, bonus.address]
    used = (operand for part in parts for base in bases(part) for operand in base.operands)
    return frozenset(operand.name for operand in used)


def _direct(form: NormalForm) -> list[Tile]:
    """Tiles of several rows whose operands appear nowhere else, so that the rows of the gradient are the operands'."""
    if not has_several(form):
        return []
    places: dict[str, set[tuple[Tile, int]]] = {}
    for _, _, stream in streams_in(form, ROLES):
        for r, base in enumerate(stream.bases):
            for operand in base.operands if base is not None else ():
                places.setdefault(operand.name, set()).add((stream.bases, r))
    shared = _read_operands(form)
    return [
        tile
        for tile in dict.fromkeys(t for role in ROWS for t in tiles_of(form, role))
        if all(
            base is None or (not base.gates and base.vector.name not in shared and len(places[base.vector.name]) == 1)
            for base in tile
        )
    ]


def _direct_lines(form: NormalForm, tile: Tile) -> Iterator[str]:
    texts = [
        scaled(f"d_{role}", factor_name(form, role, t, stream), ":, None")
        for role, t, stream in streams_in(form, ROWS)
        if stream.bases == tile
    ]
    yield f"grad_rows = {' + '.join(texts)}"
    for r, base in enumerate(tile):
        if base is not None:
            at = f"value_row * K, place * (HV * K), here & (sub == {r}), column, channel, grad_rows, K"
            yield f"rows_to(g_{base.vector.name}, {at})"


def _bonus_lines(form: NormalForm, push: Push) -> list[str]:
    """The bonus is a product of three expressions; each receives the product of the other two."""
    bonus = form.read.bonus
    if bonus is None:
        return []
    at = "value_row * V, query_place * (HV * V), query_here, first, target_channel, V, BV"
    target = f"bonus_targets(query_token, query_here, head, first + target_channel, {pointers_of(form)}, HV, V)"
    push.lines += [
        "d_bonus = tl.zeros((C,), tl.float32)",
        "for first in range(0, V, BV):",
        f"    d_out = rows_from(d_output, {at}).to(tl.float32)",
        f"    d_bonus += tl.sum(d_out * {target}.to(tl.float32), 1) * scale",
    ]
    parts = {"address": form.read.address, "weight": bonus.weight, "key": bonus.address}
    for name, expression in parts.items():
        push.lines.append(f"bonus_{name} = {push.value(expression)}")
    for name, expression in parts.items():
        others = " * ".join(f"bonus_{other}" for other in parts if other != name)
        push.lines.append(f"grad = d_bonus[:, None] * {others}")
        push.expression(expression, "grad")
    return []


def summed_gates(form: NormalForm) -> list[Operand]:
    """Numbers a head that the bonus or a target takes."""
    expressions = [row.target for row in form.rows] if not plain_targets(form) else []
    if form.read.bonus is not None:
        bonus = form.read.bonus
        expressions = [*expressions, bonus.target, bonus.weight, bonus.address, form.read.address]
    gates = {gate.name for e in expressions for term in e for gate in term.gates if gate.per == "head"}
    return [operand for operand in form.operands if operand.name in gates]
