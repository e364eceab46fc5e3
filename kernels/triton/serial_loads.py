"""Lines of the serial kernels that load: tiles of rows, factors, and the blocks of T and P T."""

from __future__ import annotations

from collections.abc import Sequence

from archsearch.kernels.triton.expressions import pointer
from archsearch.kernels.triton.serial_rows import Rows, expressions_of, factors_of, serial_operands, span
from archsearch.kernels.triton.streams import Base, bases
from archsearch.lowering import NormalForm


def lines(*groups: Sequence[str]) -> str:
    """Groups of lines as one text."""
    return "\n".join(line for group in groups for line in group) or "pass"


def serial_pointers(form: NormalForm) -> list[str]:
    """Parameters of what is loaded: operands, and kept rows where channels decay."""
    kept: list[str] = []
    if form.decay_kind == "channel":
        kept = ["kept_residual", "kept_write", "kept_read"]
    return [*(pointer(operand) for operand in serial_operands(form)), *kept]


def factor_loads(form: NormalForm, roles: Sequence[str]) -> list[str]:
    """Loads of factors [C]."""
    return [
        f"f_{each.name} = vector(factors, slot, {each.index}, {len(factors_of(form))}, C, TMA)"
        for each in factors_of(form)
        if each.role in roles
    ]


def without(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """The names that are not among others."""
    return [name for name in names if name not in others]


def tile_loads(form: NormalForm, names: Sequence[str]) -> list[str]:
    """What tiles [C, K] are made of, as it comes from memory."""
    if form.decay_kind == "channel":
        return [f"raw_{name} = matrix({_kept(form, name)}, 0, K, C, KP, TMA)" for name in names]
    return [line for name in names for line in _base_loads(_addresses(form)[name], "address")]


def tile_lines(form: NormalForm, names: Sequence[str]) -> list[str]:
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


def value_loads(form: NormalForm) -> list[str]:
    """What target tiles [C, BV] are made of."""
    return [line for base in _targets(form) for line in _base_loads(base, "value")]


def value_tiles(form: NormalForm) -> list[str]:
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


def solved_loads(rows: Rows, *, together: bool) -> list[str]:
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


def given_loads(rows: Rows, *, together: bool) -> list[str]:
    """Loads of what reads take from W."""
    if together:
        return ["given = matrix(reads, slot * C, 0, R, C, R, TMA)"]
    return [f"given_{r} = matrix(reads, slot * C, {r} * C, R, C, C, TMA)" for r in range(len(rows.write))]


def beside(name: str, count: int) -> str:
    """Tiles [BV, C] of all rows as one [BV, R]."""
    parts = [f"{name}_{r}" for r in range(count)]
    while len(parts) > 1:
        parts = [f"beside({left}, {right})" for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def apart(name: str, whole: str, count: int) -> list[str]:
    """The way back."""
    lines: list[str] = []
    parts = [whole]
    while len(parts) < count:
        halves = [f"{part}_{side}" for part in parts for side in ("left", "right")]
        lines += [f"{a}, {b} = halves({part})" for part, a, b in zip(parts, halves[::2], halves[1::2], strict=True)]
        parts = halves
    return [*lines, *(f"{name}_{r} = {part}" for r, part in enumerate(parts))]
