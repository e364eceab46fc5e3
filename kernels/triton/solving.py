"""The holes of `solve`: Gram products of base vectors, and what scales them into L and P."""

from __future__ import annotations

from collections.abc import Iterable

from archsearch.kernels.triton.expressions import pointers_of
from archsearch.kernels.triton.serial_rows import factors_of, streams_of
from archsearch.kernels.triton.streams import Base, Stream, base_text, factor_text
from archsearch.kernels.triton.text import by_row, function, sum_text
from archsearch.lowering import NormalForm

ADDRESSES = ("residual", "write", "read")


def solve_holes(form: NormalForm) -> dict[str, str]:
    """The holes of the template."""
    tiles = _tiles(form)
    pairs = _pairs(form)
    return {
        "solve_numbers": _lines(_numbers(form)),
        "solve_turns": _lines(_turns(form)),
        "solve_factors": factors_text(form),
        "solve_grams": _lines(_grams(form, tiles, pairs)),
        "solve_tiles": _lines(
            f"tile_{i} = stream_{i}({_places(form, bases)}, head, channel, {pointers_of(form)}, H, HV, K)"
            for bases, i in tiles.items()
        ),
        "solve_products": _lines(
            f"gram_{i}_{j} += product(tile_{i}, tl.trans(tile_{j}), DT, PRECISION)" for i, j in pairs
        ),
        "solve_used": _lines(f"gram_{i}_{j} += zero" for i, j in pairs),
        "solve_reads": _scaled(form, "read", tiles) or "tl.zeros((C, R), tl.float32)",
        "solve_lower": _scaled(form, "residual", tiles) or "tl.zeros((R, R), tl.float32)",
    }


def solve_functions(form: NormalForm) -> list[str]:
    """Loads of every distinct stream, and the numbers that scale the rows of each."""
    found = [_stream(form, i, bases) for bases, i in _tiles(form).items()]
    for role in (*ADDRESSES, "target"):
        found += [_scale(form, role, t, stream) for t, stream in enumerate(streams_of(form, role))]
    return found


def factors_text(form: NormalForm) -> str:
    """Lines that write every factor; they take the numbers of `solve_numbers`."""
    decays, signed = bool(form.decays), any(decay.sign is not None for decay in form.decays)
    kept = factors_of(form)
    lines: list[str] = []
    for each in kept:
        text = f"{each.role}_s{each.stream}"
        match each.role:
            case "residual" if decays:
                text += " * tl.exp(residual_g)"
            case "write" if decays:
                text += " * tl.exp(tl.minimum(last - write_g, 0.0))" + (" * last_sign" if signed else "")
            case "read":
                text += " * scale" + (" * tl.exp(read_g)" if decays else "")
            case "near_read":
                text = f"read_s{each.stream} * scale"
            case "near_write":
                text = f"write_s{each.stream}"
            case "log_read" | "log_write":
                text = f"{each.role.removeprefix('log_')}_g * LOG2E"
            case _:
                pass
        read = each.role.endswith("read")
        at = f"factors + (slot * {len(kept)} + {each.index}) * C + {'query_' if read else ''}place"
        mask = "" if read or len(form.rows) == 1 else f", mask=sub == {each.row}"
        lines.append(f"tl.store({at}, {text}{mask})")
    return _lines(lines)


def one_gate(form: NormalForm) -> bool:
    """Whether P and L take the same decays and strengths of writes: one row a token, which recalls where it is read."""
    if len(form.rows) != 1 or form.decay_kind != "scalar" or len(streams_of(form, "write")) != 1:
        return False
    row = form.rows[0]
    return bool(row.residual) and not row.previous and row.decays == form.read.decays


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines) or "pass"


def _tiles(form: NormalForm) -> dict[tuple[Base | None, ...], int]:
    """Distinct tiles of addresses; with one row a token, those of the read are rows too."""
    found: dict[tuple[Base | None, ...], int] = {}
    for role in ADDRESSES:
        for stream in streams_of(form, role):
            found.setdefault(stream.bases, len(found))
    return found


def _pairs(form: NormalForm) -> list[tuple[int, int]]:
    """The products that L and P are made of."""
    tiles = _tiles(form)
    return list(
        dict.fromkeys(
            (tiles[left.bases], tiles[right.bases])
            for role in ("residual", "read")
            for left in streams_of(form, role)
            for right in streams_of(form, "write")
        )
    )


def _grams(form: NormalForm, tiles: dict[tuple[Base | None, ...], int], pairs: list[tuple[int, int]]) -> list[str]:
    rows = {i: "C" if _is_read(form, bases) else "R" for bases, i in tiles.items()}
    return [f"gram_{i}_{j} = tl.zeros(({rows[i]}, R), tl.float32)" for i, j in pairs]


def _is_read(form: NormalForm, bases: tuple[Base | None, ...]) -> bool:
    return len(form.rows) > 1 and len(bases) == 1


def _places(form: NormalForm, bases: tuple[Base | None, ...]) -> str:
    return "query_token, query_place, query_here" if _is_read(form, bases) else "token, sub, here"


def _numbers(form: NormalForm) -> list[str]:
    """The numbers [R] or [C] of every stream."""
    lines: list[str] = []
    for role in (*ADDRESSES, "target"):
        places = "query_token, query_place, query_here" if role == "read" else "token, sub, here"
        for t, stream in enumerate(streams_of(form, role)):
            if role != "target" or not stream.plain:
                lines.append(f"{role}_s{t} = {role}_scale_{t}({places}, head, {pointers_of(form)}, HV)")
    return lines


def _turns(form: NormalForm) -> list[str]:
    """The numbers with the sign of the decay at their rows."""
    if form.decay_kind != "scalar" or not any(decay.sign for decay in form.decays):
        return []
    return [f"{role}_s{t} *= {role}_turn" for role in ADDRESSES for t, _ in enumerate(streams_of(form, role))]


def _scaled(form: NormalForm, role: str, tiles: dict[tuple[Base | None, ...], int]) -> str:
    """The sum of the products of a role with what rows write, every row and column scaled."""
    terms: list[str] = []
    plain = not any(decay.sign for decay in form.decays)
    for t, left in enumerate(streams_of(form, role)):
        for u, right in enumerate(streams_of(form, "write")):
            factors = [f"gram_{tiles[left.bases]}_{tiles[right.bases]}"]
            factors += [] if plain and left.plain else [f"{role}_s{t}[:, None]"]
            factors += [] if one_gate(form) or (plain and right.plain) else [f"write_s{u}[None, :]"]
            terms.append(" * ".join(factors))
    return sum_text(terms)


def _stream(form: NormalForm, index: int, bases: tuple[Base | None, ...]) -> str:
    zero = "tl.zeros((token.shape[0], channel.shape[0]), tl.float32)"
    lines = by_row(bases, zero, lambda base, here: base_text(base, here))
    parameters = (
        f"token, sub, here, head, channel, {pointers_of(form)}, H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr"
    )
    return function(f"stream_{index}", parameters, "Base vectors [N, BK] of the rows.", lines)


def _scale(form: NormalForm, role: str, t: int, stream: Stream) -> str:
    lines = by_row(stream.factors, "tl.where(here, 0.0, 0.0)", lambda factor, here: factor_text(factor, here))
    parameters = f"token, sub, here, head, {pointers_of(form)}, HV: tl.constexpr"
    return function(f"{role}_scale_{t}", parameters, f"The numbers [N] that scale stream {t} of the {role}s.", lines)
