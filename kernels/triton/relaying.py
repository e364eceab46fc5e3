"""Rows that must recall a state which is gone where they stand, by way of channels beside K.

What a row recalls early, it writes into a spare channel of its own, at an address that no row reads; where it stands, a
second row moves that to where it belongs and empties the channel again:

    S <- S + c (u - S^T a)^T        S <- S + (b - c) (0 + S^T c)^T        c = 1 at the spare channel

Rows that act together become rows one after another like that, and rows that read S_(t-1) may stand anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from archsearch.dsl import Expression
from archsearch.lowering import Decay, NormalForm, Read, Row


@dataclass(frozen=True, slots=True)
class Spare:
    """An entry of an address in a spare channel, counted from K."""

    channel: int
    coefficient: float


@dataclass(frozen=True, slots=True)
class Line:
    """A row, with entries of its addresses in spare channels."""

    write: Expression
    residual: Expression
    target: Expression
    previous: bool = False
    write_spare: Spare | None = None
    residual_spare: Spare | None = None


Program = tuple[Decay | Read | tuple[Line, ...], ...]
"""`NormalForm.program` of lines."""


def plain(form: NormalForm) -> Program:
    """The program as it is."""
    return tuple(tuple(map(_line, step)) if isinstance(step, tuple) else step for step in form.program)


def relayed(form: NormalForm) -> tuple[Program, int]:
    """A program of the same meaning, of rows one after another that read the state as it is, and how many spare
    channels it takes. What they hold must not decay.
    """
    channels = iter(range(len(form.rows)))
    start: list[Decay | Read | tuple[Line, ...]] = []
    rest: list[Decay | Read | tuple[Line, ...]] = []
    for step in form.program:
        if not isinstance(step, tuple):
            rest.append(step)
            continue
        last = max((i for i, row in enumerate(step) if row.residual and not row.previous), default=-1)
        moves: list[Line] = []
        plain_rows: list[Line] = []
        for i, row in enumerate(step):
            if not row.residual:
                plain_rows.append(_line(row))
            elif i != last:
                recall, move = _pair(row, next(channels))
                (start if row.previous else rest).append((recall,))
                moves.append(move)
        direct = [] if last < 0 else [_line(step[last])]
        rest += [(line,) for line in (*direct, *plain_rows, *moves)]
    return (*start, *rest), next(channels, len(form.rows))


def _pair(row: Row, channel: int) -> tuple[Line, Line]:
    recall = Line((), row.residual, row.target, write_spare=Spare(channel, 1.0))
    empty = Spare(channel, -1.0)
    return recall, Line(row.write, (), (), write_spare=empty, residual_spare=empty)


def _line(row: Row) -> Line:
    return Line(row.write, row.residual, row.target, row.previous and bool(row.residual))
