"""The holes of the two serial kernels, which see only tiles of rows and the numbers that scale them.

Where heads decay as one, tiles are base vectors and their numbers come from `solve` as factors; where channels decay,
tiles are the kept rows, decayed and scaled. A token's rows stand one after another, so that every tile is one block of
memory: row r of a chunk's token i is row r C + i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from archsearch.dsl import Expression, Operand
from archsearch.kernels.triton.expressions import pointer
from archsearch.kernels.triton.streams import ONE, Base, Factor, Stream, bases, streams
from archsearch.kernels.triton.text import sum_text
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
    return tuple(found)


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
    return len(_names((*rows.residual, *rows.write)))


def serial_holes(form: NormalForm) -> dict[str, str]:
    """The holes of `scan` and `reverse`.

    Loads of tiles that products take from shared memory stand one after another, nothing between them that uses one:
    they are waited for once. What goes through registers is loaded where it is used, or it would fill them.
    """
    rows = rows_of(form)
    moving = _names((*rows.residual, *rows.write))
    reading = _without(_names((rows.read,)), moving)
    unseen = _without(_names((rows.read,)), _names(rows.residual))
    together = side_by_side(form)
    solved, given = _solved(rows, together=together), _given(rows, together=together)
    turned = _names((*rows.write, *rows.residual, rows.read))
    return {
        "serial_pointers": ", ".join(_pointers(form)),
        "scan_loads": _lines(_loads(form, moving), solved),
        "scan_read_loads": _lines(_loads(form, reading), given),
        "scan_targets": _lines(_value_loads(form), _values(form)),
        "scan_tiles": _lines(_tiles(form, moving)),
        "scan_read_tiles": _lines(_tiles(form, reading), _factors(form, ("read",))),
        "reverse_loads": _lines(_loads(form, turned), solved, given),
        "scan_seen": _lines(_seen(_names(rows.residual), "low")),
        "scan_errors": _lines(_factors(form, ("residual", "target")), _errors(rows)),
        "scan_deltas": _lines(_deltas(rows, together=together)),
        "scan_update": _lines(_factors(form, ("write",)), _update(rows)),
        "scan_output": _lines(_seen(unseen, "low"), _output(rows, together=together)),
        "first_left": _left(form, "left", "begin * HV + head", "begin < end"),
        "last_left": _left(form, "left", "(end - 1) * HV + head", "begin < end"),
        "next_left": _left(form, "ahead", "slot + HV", "at_chunk + 1 < end"),
        "previous_left": _left(form, "ahead", "slot - HV", "at_chunk + 1 < end"),
        "scan_carry": _carry(form, "state"),
        "reverse_carry": _carry(form, "d_state"),
        "scan_save": _lines(_delta_stores(len(form.rows))),
        "reverse_tiles": _lines(_tiles(form, turned)),
        "reverse_deltas": _lines(_seen(_names(rows.write), "low"), _factors(form, ("write",)), _d_deltas(rows)),
        "reverse_targets": _lines(_d_targets(rows, together=together)),
        "reverse_update": _lines(_factors(form, ("residual", "read")), _d_update(rows)),
        "reverse_save": _lines(_target_stores(len(form.rows))),
    }


def _left(form: NormalForm, name: str, slot: str, here: str) -> str:
    """One number a chunk is asked for a chunk ahead; among the tiles it would be one more thing to wait for."""
    return f"{name} = tl.load(carry + {slot}, mask={here}, other=1.0)" if form.decay_kind == "scalar" else "pass"


def _carry(form: NormalForm, state: str) -> str:
    """What the chunk's decays leave of a state [BV, K]."""
    match form.decay_kind:
        case "none":
            return "pass"
        case "scalar":
            return f"{state} *= left\nleft = ahead"
        case _:
            return f"{state} *= tl.load(carry + slot.to(tl.int64) * K + channel, mask=channel < K, other=1.0)[None, :]"


def _lines(*groups: Sequence[str]) -> str:
    return "\n".join(line for group in groups for line in group) or "pass"


def _pointers(form: NormalForm) -> list[str]:
    kept: list[str] = []
    if form.decay_kind == "channel":
        kept = ["kept_residual", "kept_write", "kept_read"]
    return [*(pointer(operand) for operand in serial_operands(form)), *kept]


def _factors(form: NormalForm, roles: Sequence[str]) -> list[str]:
    """Loads of factors [C]."""
    return [
        f"f_{each.name} = vector(factors, slot, {each.index}, {len(factors_of(form))}, C, TMA)"
        for each in factors_of(form)
        if each.role in roles
    ]


def _names(rows: Sequence[Sequence[Part]]) -> list[str]:
    """Distinct tiles in order of first use."""
    return list(dict.fromkeys(name for row in rows for name, _ in row))


def _without(names: Sequence[str], others: Sequence[str]) -> list[str]:
    return [name for name in names if name not in others]


def _loads(form: NormalForm, names: Sequence[str]) -> list[str]:
    """What tiles [C, K] are made of, as it comes from memory."""
    if form.decay_kind == "channel":
        return [f"raw_{name} = matrix({_kept(form, name)}, 0, K, C, KP, TMA)" for name in names]
    return [line for name in names for line in _base_loads(_addresses(form)[name], "address")]


def _tiles(form: NormalForm, names: Sequence[str]) -> list[str]:
    """Tiles [C, K]."""
    if form.decay_kind == "channel":
        return [f"tile_{name} = raw_{name}" for name in names]
    return [f"tile_{name} = {_base_tile(_addresses(form)[name], 'address')}" for name in names]


def _kept(form: NormalForm, name: str) -> str:
    """The buffer of kept rows of a tile, and where its rows of a chunk begin."""
    role, _, row = name.partition("_")
    return f"kept_{role}, (slot * {span(form) if row else 1} + {row or 0}) * C"


def _addresses(form: NormalForm) -> dict[str, Base]:
    roles = ("residual", "write", "read")
    return {base.name: base for role in roles for e in expressions_of(form, role) for base in bases(e)}


def _targets(form: NormalForm) -> list[Base]:
    return list({base.name: base for e in expressions_of(form, "target") for base in bases(e)}.values())


def _value_loads(form: NormalForm) -> list[str]:
    """What target tiles [C, BV] are made of."""
    return [line for base in _targets(form) for line in _base_loads(base, "value")]


def _values(form: NormalForm) -> list[str]:
    """Target tiles [C, BV]."""
    return [f"target_{base.name} = {_base_tile(base, 'value')}" for base in _targets(form)]


def _base_loads(base: Base, role: str) -> list[str]:
    lines: list[str] = []
    for i, operand in enumerate(base.operands):
        place = f"{pointer(operand)}, sequence, first, token, here, head"
        if role == "value":
            load = f"value_tile({place}, column, HV, V, C, BV, TMA)"
        elif operand.is_address:
            load = f"address_tile({place}, channel, H, HV, K, C, KP, TMA)"
        else:
            load = f"value_tile({place}, 0, HV, K, C, KP, TMA)"
        lines.append(f"{_raw(base, role, i)} = {load}")
    return lines


def _base_tile(base: Base, role: str) -> str:
    size = "BV" if role == "value" else "KP"
    texts = [f"tl.reshape({_raw(base, role, i)}, (C, {size}))" for i, _ in enumerate(base.operands)]
    return texts[0] if len(texts) == 1 else " * ".join(f"{text}.to(tl.float32)" for text in texts)


def _raw(base: Base, role: str, place: int) -> str:
    return f"raw_{role}_{base.name}_{place}"


def side_by_side(form: NormalForm) -> bool:
    """Whether a token's rows go through T together, as one product: none is idle and all recall."""
    return len(form.rows) == span(form) > 1 and all(row.residual for row in form.rows)


def _solved(rows: Rows, *, together: bool) -> list[str]:
    """Loads of T, or of its blocks that are not known: rows that have a residual."""
    if together:
        return ["solved = matrix(inverse, slot * R, 0, R, R, R, TMA)"]
    count = len(rows.residual)
    return [
        f"solved_{r}_{j} = matrix(inverse, slot * R + {r} * C, {j} * C, R, C, C, TMA)"
        for r, residual in enumerate(rows.residual)
        if residual
        for j in range(count)
    ]


def _given(rows: Rows, *, together: bool) -> list[str]:
    """Loads of what reads take from W."""
    if together:
        return ["given = matrix(reads, slot * C, 0, R, C, R, TMA)"]
    return [f"given_{r} = matrix(reads, slot * C, {r} * C, R, C, C, TMA)" for r in range(len(rows.write))]


def _beside(name: str, count: int) -> str:
    """Tiles [BV, C] of all rows as one [BV, R]."""
    parts = [f"{name}_{r}" for r in range(count)]
    while len(parts) > 1:
        parts = [f"beside({left}, {right})" for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _apart(name: str, whole: str, count: int) -> list[str]:
    """The way back."""
    lines: list[str] = []
    parts = [whole]
    while len(parts) < count:
        halves = [f"{part}_{side}" for part in parts for side in ("left", "right")]
        lines += [f"{a}, {b} = halves({part})" for part, a, b in zip(parts, halves[::2], halves[1::2], strict=True)]
        parts = halves
    return [*lines, *(f"{name}_{r} = {part}" for r, part in enumerate(parts))]


def _seen(names: Sequence[str], state: str) -> list[str]:
    """What a state [BV, K] holds at every row of a tile: [BV, C]."""
    return [f"seen_{name} = product({state}, tl.trans(tile_{name}), DT, PRECISION)" for name in names]


def _scaled(text: str, factor: str | None) -> str:
    return text if factor is None else f"{text} * f_{factor}[None, :]"


def _errors(rows: Rows) -> list[str]:
    """u - S^T a of every row, transposed [BV, C]."""
    lines: list[str] = []
    for r, (target, residual) in enumerate(zip(rows.target, rows.residual, strict=True)):
        wanted = [_scaled(f"tl.trans(target_{name}).to(tl.float32)", factor) for name, factor in target]
        recalled = [_scaled(f"seen_{name}", factor) for name, factor in residual]
        lines.append(f"error_{r} = {sum_text(wanted) or 'tl.zeros((BV, C), tl.float32)'}")
        lines += [f"error_{r} -= {each}" for each in recalled]
    return lines


def _deltas(rows: Rows, *, together: bool) -> list[str]:
    """D = T W, at once or block by block; a row without a residual keeps its target."""
    count = len(rows.residual)
    if together:
        lines = [f"errors = {_beside('error', count)}.to(DT)"]
        lines.append("delta = product(errors, tl.trans(solved), DT, PRECISION)")
        return [*lines, *_apart("delta", "delta", count)]
    lines: list[str] = []
    for r, residual in enumerate(rows.residual):
        if not residual:
            lines.append(f"delta_{r} = error_{r}")
            continue
        for j in range(count):
            term = f"product(error_{j}, tl.trans(solved_{r}_{j}), DT, PRECISION)"
            lines.append(f"delta_{r} = {term}" if j == 0 else f"delta_{r} += {term}")
    return lines


def _update(rows: Rows) -> list[str]:
    """S <- S + sum of b D^T, one product a base vector."""
    lines: list[str] = []
    for name in _names(rows.write):
        weights = [
            _scaled(f"delta_{r}", factor) for r, row in enumerate(rows.write) for other, factor in row if other == name
        ]
        lines.append(f"state += product({sum_text(weights)}, tile_{name}, DT, PRECISION)")
    return lines


def _output(rows: Rows, *, together: bool) -> list[str]:
    """o = S^T q + (P T) W."""
    seen = [_scaled(f"seen_{name}", factor) for name, factor in rows.read]
    lines = [f"result = {sum_text(seen) or 'tl.zeros((BV, C), tl.float32)'}"]
    if together:
        return [*lines, "result += product(errors, tl.trans(given), DT, PRECISION)"]
    for r in range(len(rows.write)):
        lines.append(f"result += product(error_{r}, tl.trans(given_{r}), DT, PRECISION)")
    return lines


def _delta_stores(count: int) -> list[str]:
    """Tiles [BV, C] written as the rows [C, V] of a slot."""
    rows = [f"(slot * SPAN + {r}) * C" for r in range(count)]
    return [
        f"store_rows(deltas, 0, {row}, 0, {row}, places < C, block * BV, delta_{r}, V, V, C, BV, TMA)"
        for r, row in enumerate(rows)
    ]


def _target_stores(count: int) -> list[str]:
    """Tiles [BV, C] written as the tokens' rows of [rows, tokens, HV, V]."""
    lines: list[str] = []
    for r in range(count):
        at = f"{r} * sequences + sequence, first, head, ({r} * tokens + start) * HV + head"
        lines.append(f"store_rows(d_targets, {at}, here, block * BV, d_target_{r}, HV * V, V, C, BV, TMA)")
    return lines


def _d_deltas(rows: Rows) -> list[str]:
    """What the leaving state's gradient holds at b, transposed: dD without the share of this chunk's reads."""
    lines: list[str] = []
    for r, write in enumerate(rows.write):
        terms = [_scaled(f"seen_{name}", factor) for name, factor in write]
        lines.append(f"d_delta_{r} = {sum_text(terms) or 'tl.zeros((BV, C), tl.float32)'}")
    return lines


def _d_targets(rows: Rows, *, together: bool) -> list[str]:
    """dW = (P T)^T dO + T^T dD; rows without a residual have the unit column of T."""
    if together:
        count = len(rows.residual)
        return [
            "d_target = product(d_out, given, DT, PRECISION)",
            f"d_target += product({_beside('d_delta', count)}, solved, DT, PRECISION)",
            *_apart("d_target", "d_target", count),
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


def _d_update(rows: Rows) -> list[str]:
    """dS <- dS + q dO^T - sum of a dW^T, one product a base vector."""
    lines: list[str] = []
    for name in _names((*rows.residual, rows.read)):
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
