"""A form of many rows a token as one of at most four, whose tokens do a part each: virtual tokens, for the kernels.

Every virtual token runs one program, a pattern of slots (`archsearch.kernels.triton.patterns`); a token's rows go into
the slots of one virtual token after another, and slots that are left write nothing. Decays act in the virtual token
where they stand. Where rows do not fit into any pattern they are relayed first (`archsearch.kernels.triton.relaying`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from archsearch.dsl import Expression, Kind, Operand, Term
from archsearch.kernels.triton.expressions import Split, split
from archsearch.kernels.triton.patterns import MOST_ROWS, Pattern, best
from archsearch.kernels.triton.relaying import Line, Program, Spare, plain, relayed
from archsearch.lowering import Bonus, Decay, NormalForm, Read, Row


@dataclass(frozen=True, slots=True)
class Part:
    """What a row's vector is in one virtual token: an expression, taken apart, and an entry in a spare channel."""

    split: Split
    spare: Spare | None


@dataclass(frozen=True, slots=True)
class Vector:
    """An operand of the cut form: of each virtual token's part the vector and the spare entry; None is zero."""

    operand: Operand
    parts: tuple[Part | None, ...]


@dataclass(frozen=True, slots=True)
class Number:
    """A gate of the cut form: of each virtual token's part coefficient and gates; None is zero."""

    operand: Operand
    parts: tuple[Part | None, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A decay point of the cut form, and that of the rule which acts there in each virtual token; None is no decay."""

    operand: Operand
    parts: tuple[Decay | None, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """`form` of at most four rows a token does in `times` tokens what the rule does in one, and reads in the token
    `reads_at`. `spare`: channels beside K. `headwise`: no address is scaled a value head at a time.
    """

    form: NormalForm
    times: int
    reads_at: int
    spare: int
    headwise: bool
    vectors: tuple[Vector, ...]
    numbers: tuple[Number, ...]
    points: tuple[Point, ...]


@cache
def cut(form: NormalForm) -> Cut | None:
    """How `form` is cut; None where its tokens are short enough."""
    if len(form.rows) <= MOST_ROWS:
        return None
    program, spare = plain(form), 0
    places = best(program)
    if places is None:
        program, spare = relayed(form)
        places = best(program)
        assert places is not None, "rows one after another fit into slots one after another"
    return _Cutter(form, program, spare, *places).cut()


class _Cutter:
    """The cut form and what its operands are made of, step by step through the program of a token."""

    def __init__(
        self, form: NormalForm, program: Program, spare: int, pattern: Pattern, places: list[tuple[int, int]]
    ) -> None:
        self.form, self.program, self.pattern, self.places = form, program, pattern, places
        self.spare = spare
        self.times = places[-1][0] + 1
        self.vectors: list[Vector] = []
        self.numbers: list[Number] = []
        self.lines: dict[tuple[int, int], list[Line | None]] = defaultdict(lambda: [None] * self.times)
        self.points: dict[tuple[int, int], list[Decay | None]] = defaultdict(lambda: [None] * self.times)

    def cut(self) -> Cut:
        """The whole."""
        read_slot, read_points, reads_at = self._walked()
        order = sorted(self.points)
        points = [self._point(i, self.points[place]) for i, place in enumerate(order)]
        rows = tuple(self._rows(order))
        before = sum(place < (read_slot, read_points) for place in order)
        read = self._read(self.form.read, read_slot, before, reads_at)
        decays = tuple(Decay(point.operand, point.operand.sign) for point in points)
        signs = [decay.sign for decay in decays if decay.sign is not None]
        operands = (*(made.operand for made in (*self.vectors, *self.numbers, *points)), *signs)
        name = f"{self.form.name}_in_{self.times}"
        form = NormalForm(name, operands, decays, rows, read)
        parts = [part for made in self.vectors if made.operand.is_address for part in made.parts if part is not None]
        headwise = not any(term.gates for part in parts for term in part.split.vector)
        return Cut(
            form, self.times, reads_at, self.spare, headwise, tuple(self.vectors), tuple(self.numbers), tuple(points)
        )

    def _walked(self) -> tuple[int, int, int]:
        """Lines and decays into their places. The read's slot, how many decays stand before it there, its token.

        A decay stands right before what follows it: the slot of the next group, or the read.
        """
        pending: list[Decay] = []
        counts: Counter[tuple[int, int]] = Counter()
        places = iter(self.places)
        token, slot = 0, 0
        read = (0, 0, 0)

        def put() -> None:
            for decay in pending:
                self.points[slot, counts[token, slot]][token] = decay
                counts[token, slot] += 1
            pending.clear()

        for step in self.program:
            if isinstance(step, Decay):
                pending.append(step)
            elif isinstance(step, Read):
                put()
                read = (slot, counts[token, slot], token)
            else:
                token, slot = next(places)
                put()
                self._fill(step, token, slot)
                slot += 1
        put()
        return read

    def _fill(self, group: tuple[Line, ...], token: int, slot: int) -> None:
        free = list(range(len(self.pattern[slot])))
        for line in group:
            row = next(row for row in free if self.pattern[slot][row] == line.previous)
            free.remove(row)
            self.lines[slot, row][token] = line

    def _point(self, number: int, parts: list[Decay | None]) -> Point:
        present = [part for part in parts if part is not None]
        channel = self.spare > 0 or any(part.per_channel for part in present)
        signed = any(part.sign is not None for part in present)
        operand = Operand(f"decay_{number}", Kind.LOG_DECAY, "channel" if channel else "head", signed=signed)
        return Point(operand, tuple(parts))

    def _rows(self, order: list[tuple[int, int]]) -> Iterator[Row]:
        number = 0
        for slot, flags in enumerate(self.pattern):
            decays = sum(place <= slot for place, _ in order)
            for row, previous in enumerate(flags):
                write, residual, target = self._row(number, self.lines[slot, row])
                yield Row(slot, decays, previous, write, residual, target)
                number += 1

    def _row(self, number: int, lines: list[Line | None]) -> tuple[Expression, Expression, Expression]:
        """The expressions of a row; one operand for both addresses where numbers alone tell them apart."""
        writes = [None if line is None else _part(line.write, line.write_spare) for line in lines]
        residuals = [None if line is None else _part(line.residual, line.residual_spare) for line in lines]
        targets = [None if line is None else _part(line.target) for line in lines]
        pairs = list(zip(writes, residuals, strict=True))
        if all(_alike(*pair) for pair in pairs):
            bases = [write or residual for write, residual in pairs]
            vector = self._vector(f"address_{number}", Kind.KEY, bases)
            write = self._scaled(f"write_{number}", vector, bases, writes)
            residual = self._scaled(f"residual_{number}", vector, bases, residuals)
        else:
            write = self._expression(f"write_{number}", Kind.KEY, writes)
            residual = self._expression(f"residual_{number}", Kind.KEY, residuals)
        return write, residual, self._expression(f"target_{number}", Kind.VALUE, targets)

    def _read(self, read: Read, slot: int, decays: int, token: int) -> Read:
        def own(name: str, kind: Kind, expression: Expression) -> Expression:
            return self._expression(name, kind, [_part(expression) if i == token else None for i in range(self.times)])

        bonus = read.bonus and Bonus(
            own("bonus_weight", Kind.KEY, read.bonus.weight),
            own("bonus_address", Kind.KEY, read.bonus.address),
            own("bonus_target", Kind.VALUE, read.bonus.target),
        )
        return Read(slot, decays, own("read", Kind.QUERY, read.address), bonus, read.scale, read.normaliser)

    def _expression(self, name: str, kind: Kind, parts: list[Part | None]) -> Expression:
        return self._scaled(f"{name}_scale", self._vector(name, kind, parts), parts, parts) if any(parts) else ()

    def _vector(self, name: str, kind: Kind, parts: list[Part | None]) -> Operand:
        operand = Operand(name, kind, of="value" if kind is Kind.VALUE else "key")
        self.vectors.append(Vector(operand, tuple(parts)))
        return operand

    def _scaled(self, name: str, vector: Operand, bases: list[Part | None], parts: list[Part | None]) -> Expression:
        """`vector` times what scales each part; a vector that is there where its part is not is scaled by 0."""
        if not any(parts):
            return ()
        needed = [part for base, part in zip(bases, parts, strict=True) if base]
        scales = {(part.split.coefficient, part.split.gates) if part else (0.0, ()) for part in needed}
        coefficient, gates = next(iter(scales))
        if len(scales) == 1 and not gates:
            return (Term(coefficient, (), vector),)
        operand = Operand(name, Kind.GATE)
        self.numbers.append(Number(operand, tuple(parts)))
        return (Term(1.0, (operand,), vector),)


def _part(expression: Expression, spare: Spare | None = None) -> Part | None:
    """A number would scale the spare entry too, so beside one the expression stays whole."""
    if spare is not None:
        return Part(Split(1.0, (), expression), spare)
    return Part(split(expression), None) if expression else None


def _alike(write: Part | None, residual: Part | None) -> bool:
    if write is None or residual is None:
        return True
    return (write.split.vector, write.spare) == (residual.split.vector, residual.spare)
