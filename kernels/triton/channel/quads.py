"""The rows of a quad in the text of a kernel, what decays leave of them, and what they see of their own token."""

from __future__ import annotations

from collections.abc import Sequence

from archsearch.kernels.triton.expressions import pointers_of
from archsearch.kernels.triton.gradients.streams import joined
from archsearch.kernels.triton.serial_rows import span
from archsearch.lowering import NormalForm

TOKENS = range(4)


def woven(tiles: Sequence[Sequence[str]]) -> str:
    """The text of one tile whose rows are those of `tiles` [token][substep] in turn."""
    return _alternated([text for token in tiles for text in token])


def _alternated(texts: list[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    return f"woven({_alternated(texts[0::2])}, {_alternated(texts[1::2])})"


def has_signs(form: NormalForm) -> bool:
    """Whether a decay has a sign."""
    return any(decay.sign is not None for decay in form.decays)


def _padded(form: NormalForm, names: Sequence[str]) -> list[str]:
    """One name a substep, `nothing` for those that stand idle."""
    return [*names, *["nothing"] * (span(form) - len(names))]


def write_tiles(form: NormalForm) -> list[list[str]]:
    """The write rows [token][substep] by name."""
    names = [[f"b_{s}_{r}" if row.write else "nothing" for s, row in enumerate(form.rows)] for r in TOKENS]
    return [_padded(form, each) for each in names]


def residual_tiles(form: NormalForm) -> list[list[str]]:
    """The residual rows [token][substep]; where the rule has none, the write rows, of which nothing is used."""
    if not any(row.residual for row in form.rows):
        return write_tiles(form)
    names = [[f"a_{s}_{r}" if row.residual else "nothing" for s, row in enumerate(form.rows)] for r in TOKENS]
    return [_padded(form, each) for each in names]


def weighed(tiles: Sequence[Sequence[str]], weights: Sequence[str]) -> list[list[str]]:
    """Each token's rows times its weight; an empty weight is 1."""
    return [
        [f"{text} * {weight}" if weight and text != "nothing" else text for text in token]
        for token, weight in zip(tiles, weights, strict=True)
    ]


def place_of(form: NormalForm, s: int, role: str) -> int:
    """How many of the token's decay points act before a row's use of the state."""
    row = form.rows[s]
    return 0 if role == "residual" and row.previous else row.decays


def used_rows(form: NormalForm, role: str) -> list[bool]:
    """Whether the row of each substep has a residual, or a write."""
    return [bool(row.residual if role == "residual" else row.write) for row in form.rows]


def decays_left(form: NormalForm, tokens: str, whole: str, first: int, last: int) -> str:
    """What the decay points first .. last - 1 of tokens leave, which is `whole` where these are all; empty where there
    are none. `tokens`: the names of the tokens, and of whether each is real.
    """
    if first >= last:
        return ""
    if (first, last) == (0, len(form.decays)):
        return whole
    return f"tl.exp(log_between({tokens}, head, channel, {pointers_of(form)}, {first}, {last}, HV, K))"


def left_between(form: NormalForm, r: int, first: int, last: int) -> str:
    """The same of token r of every quad."""
    return decays_left(form, f"token_{r}, here_{r}", f"left_{r}", first, last)


def quad_decays(form: NormalForm) -> str:
    """What all decay points of every token leave, and its logarithm."""
    given = f"head, channel, {pointers_of(form)}, 0, {len(form.decays)}, HV, K"
    lines = [f"log_{r} = log_between(token_{r}, here_{r}, {given})" for r in TOKENS]
    return joined([*lines, *(f"left_{r} = tl.exp(log_{r})" for r in TOKENS)])


def quad_turns(form: NormalForm) -> str:
    """The sign of all decay points of every token."""
    given = f"head, channel, {pointers_of(form)}, 0, {len(form.decays)}, HV, K"
    lines = [f"turn_{r} = turn_between(token_{r}, here_{r}, {given})" for r in TOKENS] if has_signs(form) else []
    return joined(lines)


def turn_text(form: NormalForm, r: int, place: int) -> str:
    """The sign since the chunk's start at a place of token r."""
    factors = ["start_turn", *(f"turn_{other}" for other in range(r))]
    if place == len(form.decays):
        factors.append(f"turn_{r}")
    elif place:
        factors.append(f"turn_between(token_{r}, here_{r}, head, channel, {pointers_of(form)}, 0, {place}, HV, K)")
    return " * ".join(factors)


def quad_rows(form: NormalForm) -> str:
    """The rows themselves, in float32, turned by the sign of the decays before them."""
    lines: list[str] = []

    def add(name: str, call: str, r: int, place: int) -> None:
        text = f"{call}(token_{r}, here_{r}, head, channel, {pointers_of(form)}, H, HV, K)"
        lines.append(f"{name} = {text}" + (f" * ({turn_text(form, r, place)})" if has_signs(form) else ""))

    for r in TOKENS:
        for s, row in enumerate(form.rows):
            if row.write:
                add(f"b_{s}_{r}", f"write_row_{s}", r, place_of(form, s, "write"))
            if row.residual:
                add(f"a_{s}_{r}", f"residual_row_{s}", r, place_of(form, s, "residual"))
        add(f"q_{r}", "read_row", r, form.read.decays)
    return joined(lines)


def left_before(form: NormalForm, s: int, r: int) -> str:
    """What decays leave from the start of token r to where substep s recalls."""
    return left_between(form, r, 0, place_of(form, s, "residual"))


def left_behind(form: NormalForm, s: int, r: int) -> str:
    """What decays leave from the write of substep s to the end of token r."""
    return left_between(form, r, place_of(form, s, "write"), len(form.decays))


def quad_places(form: NormalForm) -> str:
    """Residual and read rows decayed since their token's start, write rows to its end."""
    lines: list[str] = []
    for r in TOKENS:
        for s, row in enumerate(form.rows):
            if row.residual and (text := left_before(form, s, r)):
                lines.append(f"a_{s}_{r} *= {text}")
            if row.write and (text := left_behind(form, s, r)):
                lines.append(f"b_{s}_{r} *= {text}")
        if text := left_between(form, r, 0, form.read.decays):
            lines.append(f"q_{r} *= {text}")
    return joined(lines)


def places_of_writes(form: NormalForm) -> list[int]:
    """How many decay points act before the writes of a token: every number that there is."""
    return sorted({row.decays for row in form.rows if row.write})


def own_tiles(form: NormalForm, place: int) -> tuple[str, str, str]:
    """Write rows of one place, and the residual and read rows as they see those: decayed in between."""
    writes = [[f"b_{s}_{r}" if row.write and row.decays == place else "nothing" for s, row in enumerate(form.rows)]
              for r in TOKENS]  # fmt: skip
    asks: list[list[str]] = []
    for r in TOKENS:
        token: list[str] = []
        for s, row in enumerate(form.rows):
            seen = row.residual and place_of(form, s, "residual") >= place
            weight = left_between(form, r, place, place_of(form, s, "residual"))
            token.append((f"a_{s}_{r}" + (f" * {weight}" if weight else "")) if seen else "nothing")
        asks.append(_padded(form, token))
    reads = [[f"q_{r}" + (f" * {weight}" if (weight := left_between(form, r, place, form.read.decays)) else "")]
             for r in TOKENS]  # fmt: skip
    return woven([_padded(form, token) for token in writes]), woven(asks), woven(reads)


def sees_own(form: NormalForm) -> bool:
    """Whether a row may recall what another of its token has written."""
    return len(form.rows) > 1 and any(row.residual for row in form.rows)


def own_pairs(form: NormalForm) -> str:
    """What rows and the read see of their own token."""
    lines: list[str] = []
    for place in places_of_writes(form):
        writes, asks, reads = own_tiles(form, place)
        lines.append(f"own = stacked(({writes}).to(DT), BLOCKS)")
        lines.append(f"met = stacked_product(stacked({reads}, BLOCKS), own, DT, PRECISION)")
        lines.append("near_gram += tl.where(own_read, met, 0.0)")
        if sees_own(form):
            lines.append(f"met = stacked_product(stacked({asks}, BLOCKS), own, DT, PRECISION)")
            lines.append("near_lower += tl.where(own_row, met, 0.0)")
    return joined(lines)
