"""What the launching code asks of a rule, as plain data: no form is known below this."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from archsearch.dsl import Kind, Operand
from archsearch.kernels.triton.adjoint import numbers
from archsearch.kernels.triton.expressions import pointer
from archsearch.kernels.triton.generation import has_bonus
from archsearch.kernels.triton.gradients.numbers import sums_of
from archsearch.kernels.triton.gradients.operands import gradient_operands
from archsearch.kernels.triton.serial_rows import (
    address_operands,
    factors_of,
    kept_value,
    moved,
    serial_operands,
    side_by_side,
    solves,
    span,
)
from archsearch.kernels.triton.strengths import plain_targets
from archsearch.lowering import NormalForm


@dataclass(frozen=True)
class Facts:
    """Operands are told by their places in the call.

    rows: of a token, `span` of them with idle ones. channel: whether channels decay apart. divided: whether outputs are
    divided by one of their columns. solves: whether P is kept, and T where a row recalls. keeps_targets: whether D is
    kept. together: whether the serial kernels put a token's rows side by side. moved: tiles of K channels that
    residuals and writes take. factors, sums: sections of these buffers. tiles: what the serial
    kernels load, and whether it has K channels or V. plain: values whose gradient is that of a row's target, and the
    row. tiled and numbered: operands whose gradients a kernel writes, in the order of its parameters: those with
    channels, and those of one number a head.
    """

    name: str
    operands: tuple[str, ...]
    pointers: tuple[str, ...]
    shapes: tuple[str, ...]
    addresses: tuple[int, ...]
    values: tuple[int, ...]
    rows: int
    span: int
    decays: bool
    channel: bool
    signed: bool
    residual: bool
    solves: bool
    keeps_targets: bool
    bonus: bool
    divided: bool
    together: bool
    moved: int
    factors: int
    sums: int
    tiles: tuple[tuple[int, bool], ...]
    plain: tuple[tuple[int, int], ...]
    tiled: tuple[int, ...]
    numbered: tuple[int, ...]


@lru_cache(maxsize=1024)
def facts_of(form: NormalForm) -> Facts:
    """The facts of a form."""
    names = [operand.name for operand in form.operands]
    keys, channel = address_operands(form), form.decay_kind == "channel"

    def places(operands: tuple[Operand, ...] | list[Operand]) -> tuple[int, ...]:
        return tuple(names.index(operand.name) for operand in operands)

    return Facts(
        name=form.name,
        operands=tuple(names),
        pointers=tuple(pointer(operand) for operand in form.operands),
        shapes=tuple(operand.shape.strip("[]") for operand in form.operands),
        addresses=places([operand for operand in form.operands if operand.is_address]),
        values=places([operand for operand in form.operands if operand.kind is Kind.VALUE]),
        rows=len(form.rows),
        span=span(form),
        decays=bool(form.decays),
        channel=channel,
        signed=any(point.sign is not None for point in form.decays),
        residual=any(row.residual for row in form.rows),
        solves=solves(form),
        keeps_targets=kept_value(form) is None,
        bonus=has_bonus(form),
        divided=form.read.normaliser is not None,
        together=side_by_side(form),
        moved=moved(form),
        factors=len(factors_of(form)),
        sums=0 if channel else len(sums_of(form)),
        tiles=tuple((names.index(operand.name), operand.name in keys) for operand in serial_operands(form)),
        plain=tuple((names.index(name), row) for name, row in plain_targets(form).items()),
        tiled=places(gradient_operands(form)),
        numbered=places(numbers(form)),
    )
