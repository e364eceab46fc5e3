"""What rows of a token are made of in the serial kernels: tiles, and the numbers that scale them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from archsearch.dsl import Expression, Operand
from archsearch.kernels.triton.streams import ONE, Factor, Stream, bases, streams
from archsearch.kernels.triton.strengths import plain_targets
from archsearch.lowering import NormalForm

Part = tuple[str, str | None]
"""A tile and the factor that scales its rows."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Which tiles make up every row of a token: residual, write and target a row, and the read."""

    residual: tuple[tuple[Part, ...], ...]
    write: tuple[tuple[Part, ...], ...]
    target: tuple[tuple[Part, ...], ...]
    read: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Scaled:
    """A section of factors [C]: the number a token of one row's term, `first` rows after the start of its stream."""

    role: str
    stream: int
    row: int
    factor: Factor
    index: int

    @property
    def name(self) -> str:
        """In generated code."""
        return f"{self.role}_{self.stream}_{self.row}"


def solves(form: NormalForm) -> bool:
    """Whether `solve` makes P, and T if a row recalls. Elsewhere P takes one product of tiles that the serial kernels
    have, and is made there. With two rows, several base vectors, or the column of a normaliser, that would be several
    products a chunk; beside a bonus, whose tiles `solve` loads anyway, those kernels have no registers left for P.
    """
    if form.read.normaliser is not None or form.read.bonus is not None or form.decay_kind == "channel":
        return True
    several = any(len(streams_of(form, role)) > 1 for role in ("read", "write"))
    return several or len(form.rows) > 1 or any(row.residual for row in form.rows)


def kept_value(form: NormalForm) -> Operand | None:
    """The value that is D as it is: of the one row of a token that recalls nothing. Elsewhere D is written."""
    plain = plain_targets(form)
    if form.decay_kind == "channel" or len(form.rows) != 1 or form.rows[0].residual or not plain:
        return None
    return next(operand for operand in form.operands if operand.name in plain)


def span(form: NormalForm) -> int:
    """Rows a token in the kernels: those of the rule, and idle ones up to a power of two."""
    return 1 << (len(form.rows) - 1).bit_length()


def expressions_of(form: NormalForm, role: str) -> tuple[Expression, ...]:
    """The expression of every row; the read has one."""
    match role:
        case "residual":
            return tuple(row.residual for row in form.rows)
        case "write":
            return tuple(row.write for row in form.rows)
        case "target":
            return tuple(row.target for row in form.rows)
        case _:
            return (form.read.address,)


@lru_cache(maxsize=1024)
def streams_of(form: NormalForm, role: str) -> tuple[Stream, ...]:
    """The streams of a role; those of residuals begin with what the rows write."""
    like = expressions_of(form, "write") if role == "residual" else ()
    return streams(expressions_of(form, role), like)


@lru_cache(maxsize=1024)
def factors_of(form: NormalForm) -> tuple[Scaled, ...]:
    """Every factor, in the order in which they are kept."""
    found: list[Scaled] = []
    for role in ("residual", "write", "target", "read"):
        for t, stream in enumerate(streams_of(form, role)):
            for r, factor in enumerate(stream.factors):
                if factor is not None and _is_kept(form, role, factor):
                    found.append(Scaled(role, t, r, factor, len(found)))
    if not solves(form):
        found += [replace(each, index=len(found) + i) for i, each in enumerate(_near_factors(form))]
    return tuple(found)


def _near_factors(form: NormalForm) -> list[Scaled]:
    """What pairs of a chunk's tokens take where the serial kernels make P: numbers without decays, and the logs of
    those, since in a chunk that decays strongly the decays themselves may be 0.
    """
    signed = any(decay.sign is not None for decay in form.decays)
    found = [Scaled("log_read", 0, 0, ONE, 0)] if form.decays else []
    if form.rows[0].decays != form.read.decays:
        found.append(Scaled("log_write", 0, 0, ONE, 0))
    for role in ("read", "write"):
        for stream in streams_of(form, role):  # one, where there is any
            if signed or not stream.plain:
                found += [Scaled(f"near_{role}", 0, 0, factor, 0) for factor in stream.factors if factor is not None]
    return found


def _is_kept(form: NormalForm, role: str, factor: Factor) -> bool:
    """Whether a factor is a number that a serial kernel must load."""
    if role == "target":
        return factor != ONE
    if form.decay_kind == "channel":
        return False
    return role == "read" or bool(form.decays) or factor != ONE


def serial_operands(form: NormalForm) -> tuple[Operand, ...]:
    """The operands whose tiles the serial kernels load."""
    roles = ("target",) if form.decay_kind == "channel" else ("residual", "write", "read", "target")
    expressions = [expression for role in roles for expression in expressions_of(form, role)]
    names = {operand.name for e in expressions for base in bases(e) for operand in base.operands}
    return tuple(operand for operand in form.operands if operand.name in names)


def address_operands(form: NormalForm) -> frozenset[str]:
    """Names of the operands of `serial_operands` that have K channels."""
    roles = () if form.decay_kind == "channel" else ("residual", "write", "read")
    expressions = [expression for role in roles for expression in expressions_of(form, role)]
    return frozenset(operand.name for e in expressions for base in bases(e) for operand in base.operands)


@lru_cache(maxsize=1024)
def rows_of(form: NormalForm) -> Rows:
    """The rows of a token as tiles and factors."""
    names = {(each.role, each.stream, each.row): each.name for each in factors_of(form)}
    channel = form.decay_kind == "channel"

    def row(role: str, r: int, expression: Expression) -> tuple[Part, ...]:
        if channel and role != "target":
            place = "" if role == "read" else f"_{r}"
            return ((f"{role}{place}", None),) if expression else ()
        parts: list[Part] = []
        for t, stream in enumerate(streams_of(form, role)):
            base = stream.bases[r]
            if base is not None:
                parts.append((base.name, names.get((role, t, r))))
        return tuple(parts)

    count = len(form.rows)
    each = {role: expressions_of(form, role) for role in ("residual", "write", "target", "read")}
    return Rows(
        residual=tuple(row("residual", r, each["residual"][r]) for r in range(count)),
        write=tuple(row("write", r, each["write"][r]) for r in range(count)),
        target=tuple(row("target", r, each["target"][r]) for r in range(count)),
        read=row("read", 0, each["read"][0]),
    )


def moved(form: NormalForm) -> int:
    """How many tiles of K channels residuals and writes take."""
    rows = rows_of(form)
    return len(tile_names((*rows.residual, *rows.write)))


def tile_names(rows: Sequence[Sequence[Part]]) -> list[str]:
    """Distinct tiles in order of first use."""
    return list(dict.fromkeys(name for row in rows for name, _ in row))


def side_by_side(form: NormalForm) -> bool:
    """Whether a token's rows go through T together, as one product: none is idle and all recall."""
    return len(form.rows) == span(form) > 1 and all(row.residual for row in form.rows)
