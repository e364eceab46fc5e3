"""The holes of the chunk-parallel kernels of rules whose channels decay on their own.

Four tokens, a quad, stand beside one another in registers, one tile [C / 4, BK] for each, so that what decays leave
between them is a product of numbers at hand; between quads it is one exponential a quad and level. Names in the text:
`a_s_r`, `b_s_r` residual and write rows of substep s of the quad's token r, `q_r` its read, `left_r` what all its decay
points leave, `log_r` the logarithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from archsearch.dsl import Expression, Operand
from archsearch.kernels.triton.expressions import literal, load_text, pointer, scale_text, split, vector_text
from archsearch.kernels.triton.serial_rows import factors_of, span, streams_of
from archsearch.kernels.triton.streams import factor_text
from archsearch.kernels.triton.text import by_row, function
from archsearch.lowering import NormalForm

TOKENS = range(4)


def channel_holes(form: NormalForm) -> dict[str, str]:
    """The holes of `solve_channel` and `gradients_channel`."""
    one = ["one"] * 4
    read = [["q_0"], ["q_1"], ["q_2"], ["q_3"]]
    return {
        "quad_tokens": _lines(f"token_{r} = 4 * quad + {r}\nhere_{r} = token_{r} < length" for r in TOKENS),
        "quad_decays": _quad_decays(form),
        "quad_turns": _quad_turns(form),
        "quad_rows": _quad_rows(form),
        "quad_places": _quad_places(form),
        "own_pairs": _own_pairs(form),
        "own_gradients": _own_gradients(form),
        "mixed_0": woven(_mixed(form, (0, 1, 0, 1))),
        "mixed_1": woven(_mixed(form, (0, 0, 1, 1), ("left_1", "", "", "left_2"))),
        "asked_0": woven(read),
        "asked_1": woven([*read[:3], ["q_3 * left_2"]]),
        "late_rows": woven(_weighed(_residuals(form), BEFORE)),
        "early_rows": woven(_weighed(_writes(form), BEHIND)),
        "read_rows": woven(_weighed(read, BEFORE)),
        "late_weights": woven(_repeated(form, [text or "one" for text in BEFORE])),
        "early_weights": woven(_repeated(form, [text or "one" for text in BEHIND])),
        "read_weights": woven([[text or "one"] for text in BEFORE]),
        "mixed_weights": woven(_repeated(form, ["left_1", "one", "one", "left_2"])),
        "asked_weights": woven([[text] for text in (*one[:3], "left_2")]),
        "since": _chain("since", "starts", BEFORE_EACH),
        "until": _chain("until", "last - ends", BEHIND_EACH, turn=" * last_turn" if _signed(form) else ""),
        "grown": _chain("grown", "-ends", BEHIND_EACH, "LIMIT"),
        "late": woven(_weighed(_residuals(form), _named("since"))),
        "early": woven(_weighed(_writes(form), _named("grown"))),
        "kept_write": woven(_weighed(_writes(form), _named("until"))),
        "asked": woven(_weighed(read, _named("since"))),
        "now_residual": woven(_now(form, "residual")),
        "now_write": woven(_now(form, "write")),
        "now_read": woven([[_times(f"since_{r}", _between(form, r, 0, form.read.decays))] for r in TOKENS]),
        "place_weights": _place_weights(form),
        "turn_back": _turn_back(form),
        "target_factors": _target_factors(form),
    }


def channel_functions(form: NormalForm) -> list[str]:
    """The rows of a substep, and what some of a token's decay points make of a state."""
    found = [_row(form, f"write_row_{s}", "The write", row.write) for s, row in enumerate(form.rows)]
    found += [_row(form, f"residual_row_{s}", "The residual", row.residual) for s, row in enumerate(form.rows)]
    found += [_row(form, "read_row", "The read", form.read.address), _log_between(form)]
    found += [_turn_between(form)] if _signed(form) else []
    return found + [_target_scale(form, t) for t in _scaled_targets(form)]


def woven(tiles: Sequence[Sequence[str]]) -> str:
    """The text of one tile whose rows are those of `tiles` [token][substep] in turn."""
    return _alternated([text for token in tiles for text in token])


BEFORE = ("", "left_0", "(left_0 * left_1)", "(left_0 * left_1 * left_2)")
"""What decays leave from the quad's start to each of its tokens, that token's own apart."""
BEHIND = ("(left_1 * left_2 * left_3)", "(left_2 * left_3)", "left_3", "")
"""What decays leave from behind each token of the quad to its end."""


BEFORE_EACH = tuple((r, r - 1, f"left_{r - 1}") for r in (1, 2, 3))
"""Of the weights that grow with the tokens before: token, the one whose weight is known, what decays in between."""
BEHIND_EACH = tuple((r, r + 1, f"left_{r + 1}") for r in (2, 1, 0))
"""The same for what decays behind each token."""


def _chain(name: str, log: str, links: Sequence[tuple[int, int, str]], most: str = "0.0", turn: str = "") -> str:
    """A weight for each token of the quad: the exponential of `log`, at most `most`, times the quad's own decays."""
    first = links[0][1]
    return _lines(
        [
            f"{name}_{first} = tl.exp(tl.minimum({log}, {most})){turn}",
            *(f"{name}_{r} = {name}_{o} * {left}" for r, o, left in links),
        ]
    )


def _named(name: str) -> list[str]:
    return [f"{name}_{r}" for r in TOKENS]


def _times(text: str, factor: str) -> str:
    return f"{text} * {factor}" if factor else text


def _now(form: NormalForm, role: str) -> list[list[str]]:
    """What decays, or grows, a row of each token and substep since the chunk's start, those of its own token too."""
    own, name = (_heads, "since") if role == "residual" else (_tails, "grown")
    rows = range(len(form.rows))
    used = [bool(row.residual if role == "residual" else row.write) for row in form.rows]
    filled = [[_times(f"{name}_{r}", own(form, s, r) if used[s] else "") for s in rows] for r in TOKENS]
    return [[*token, *[f"{name}_{r}"] * (span(form) - len(token))] for r, token in enumerate(filled)]


def _alternated(texts: list[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    return f"woven({_alternated(texts[0::2])}, {_alternated(texts[1::2])})"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines) or "pass"


def _pointers(form: NormalForm) -> str:
    return ", ".join(pointer(operand) for operand in form.operands)


def _signed(form: NormalForm) -> bool:
    return any(decay.sign is not None for decay in form.decays)


def _padded(form: NormalForm, names: Sequence[str]) -> list[str]:
    """One name a substep, `nothing` for those that stand idle."""
    return [*names, *["nothing"] * (span(form) - len(names))]


def _repeated(form: NormalForm, texts: Sequence[str]) -> list[list[str]]:
    return [[text] * span(form) for text in texts]


def _writes(form: NormalForm) -> list[list[str]]:
    names = [[f"b_{s}_{r}" if row.write else "nothing" for s, row in enumerate(form.rows)] for r in TOKENS]
    return [_padded(form, each) for each in names]


def _residuals(form: NormalForm) -> list[list[str]]:
    """The residual rows; where no row of the rule has one, the write rows, of which nothing is used then."""
    if not any(row.residual for row in form.rows):
        return _writes(form)
    names = [[f"a_{s}_{r}" if row.residual else "nothing" for s, row in enumerate(form.rows)] for r in TOKENS]
    return [_padded(form, each) for each in names]


def _weighed(tiles: Sequence[Sequence[str]], weights: Sequence[str]) -> list[list[str]]:
    return [
        [f"{text} * {weight}" if weight and text != "nothing" else text for text in token]
        for token, weight in zip(tiles, weights, strict=True)
    ]


def _mixed(form: NormalForm, late: Sequence[int], weights: Sequence[str] = ("", "", "", "")) -> list[list[str]]:
    """Residual rows of the quad's late tokens and write rows of its early ones."""
    writes, residuals = _writes(form), _residuals(form)
    return _weighed([(residuals if late[r] else writes)[r] for r in TOKENS], weights)


def _place(form: NormalForm, s: int, role: str) -> int:
    """How many of the token's decay points act before a row's use of the state."""
    row = form.rows[s]
    return 0 if role == "residual" and row.previous else row.decays


def _between(form: NormalForm, r: int, first: int, last: int) -> str:
    """What the decay points first .. last - 1 of token r leave; empty where there are none."""
    if first >= last:
        return ""
    if (first, last) == (0, len(form.decays)):
        return f"left_{r}"
    return f"tl.exp(log_between(token_{r}, here_{r}, head, channel, {_pointers(form)}, {first}, {last}, HV, K))"


def _quad_decays(form: NormalForm) -> str:
    given = f"head, channel, {_pointers(form)}, 0, {len(form.decays)}, HV, K"
    lines = [f"log_{r} = log_between(token_{r}, here_{r}, {given})" for r in TOKENS]
    return _lines([*lines, *(f"left_{r} = tl.exp(log_{r})" for r in TOKENS)])


def _quad_turns(form: NormalForm) -> str:
    """The sign of all decay points of every token."""
    given = f"head, channel, {_pointers(form)}, 0, {len(form.decays)}, HV, K"
    lines = [f"turn_{r} = turn_between(token_{r}, here_{r}, {given})" for r in TOKENS] if _signed(form) else []
    return _lines(lines)


def _turn(form: NormalForm, r: int, place: int) -> str:
    """The sign since the chunk's start at a place of token r."""
    factors = ["start_turn", *(f"turn_{other}" for other in range(r))]
    if place == len(form.decays):
        factors.append(f"turn_{r}")
    elif place:
        factors.append(f"turn_between(token_{r}, here_{r}, head, channel, {_pointers(form)}, 0, {place}, HV, K)")
    return " * ".join(factors)


def _quad_rows(form: NormalForm) -> str:
    """The rows themselves, in float32, turned by the sign of the decays before them."""
    lines: list[str] = []

    def add(name: str, call: str, r: int, place: int) -> None:
        text = f"{call}(token_{r}, here_{r}, head, channel, {_pointers(form)}, H, HV, K)"
        lines.append(f"{name} = {text}" + (f" * ({_turn(form, r, place)})" if _signed(form) else ""))

    for r in TOKENS:
        for s, row in enumerate(form.rows):
            if row.write:
                add(f"b_{s}_{r}", f"write_row_{s}", r, _place(form, s, "write"))
            if row.residual:
                add(f"a_{s}_{r}", f"residual_row_{s}", r, _place(form, s, "residual"))
        add(f"q_{r}", "read_row", r, form.read.decays)
    return _lines(lines)


def _heads(form: NormalForm, s: int, r: int) -> str:
    return _between(form, r, 0, _place(form, s, "residual"))


def _tails(form: NormalForm, s: int, r: int) -> str:
    return _between(form, r, _place(form, s, "write"), len(form.decays))


def _quad_places(form: NormalForm) -> str:
    """Residual and read rows decayed since their token's start, write rows to its end."""
    lines: list[str] = []
    for r in TOKENS:
        for s, row in enumerate(form.rows):
            if row.residual and (text := _heads(form, s, r)):
                lines.append(f"a_{s}_{r} *= {text}")
            if row.write and (text := _tails(form, s, r)):
                lines.append(f"b_{s}_{r} *= {text}")
        if text := _between(form, r, 0, form.read.decays):
            lines.append(f"q_{r} *= {text}")
    return _lines(lines)


def _place_weights(form: NormalForm) -> str:
    """The same for the gradients of rows."""
    lines: list[str] = []
    rows = [(s, row) for s, row in enumerate(form.rows)]
    for name, texts in (
        ("d_residual", [[_heads(form, s, r) if row.residual else "" for s, row in rows] for r in TOKENS]),
        ("d_write", [[_tails(form, s, r) if row.write else "" for s, row in rows] for r in TOKENS]),
        ("d_read", [[_between(form, r, 0, form.read.decays)] for r in TOKENS]),
    ):
        if any(text for token in texts for text in token):
            padding = 0 if name == "d_read" else span(form) - len(rows)
            filled = [[*(text or "one" for text in token), *["one"] * padding] for token in texts]
            lines.append(f"{name} *= stacked({woven(filled)}, BLOCKS)")
    return _lines(lines)


def _turn_back(form: NormalForm) -> str:
    """Gradients of rows before they were turned."""
    if not _signed(form):
        return "pass"
    rows = range(len(form.rows))
    padding = ["one"] * (span(form) - len(rows))
    lines: list[str] = []
    for role in ("residual", "write"):
        if role == "write" or any(row.residual for row in form.rows):
            turns = [[*(_turn(form, r, _place(form, s, role)) for s in rows), *padding] for r in TOKENS]
            lines.append(f"d_{role} *= {woven(turns)}")
    lines.append(f"d_read *= {woven([[_turn(form, r, form.read.decays)] for r in TOKENS])}")
    return _lines(lines)


def _places_of_writes(form: NormalForm) -> list[int]:
    return sorted({row.decays for row in form.rows if row.write})


def _own_tiles(form: NormalForm, place: int) -> tuple[str, str, str]:
    """Write rows of one place, and the residual and read rows as they see those: decayed in between."""
    writes = [[f"b_{s}_{r}" if row.write and row.decays == place else "nothing" for s, row in enumerate(form.rows)]
              for r in TOKENS]  # fmt: skip
    asks: list[list[str]] = []
    for r in TOKENS:
        token: list[str] = []
        for s, row in enumerate(form.rows):
            seen = row.residual and _place(form, s, "residual") >= place
            weight = _between(form, r, place, _place(form, s, "residual"))
            token.append((f"a_{s}_{r}" + (f" * {weight}" if weight else "")) if seen else "nothing")
        asks.append(_padded(form, token))
    reads = [[f"q_{r}" + (f" * {weight}" if (weight := _between(form, r, place, form.read.decays)) else "")]
             for r in TOKENS]  # fmt: skip
    return woven([_padded(form, token) for token in writes]), woven(asks), woven(reads)


def _own_pairs(form: NormalForm) -> str:
    """What rows and the read see of their own token."""
    lines: list[str] = []
    for place in _places_of_writes(form):
        writes, asks, reads = _own_tiles(form, place)
        lines.append(f"own = stacked(({writes}).to(DT), BLOCKS)")
        lines.append(f"met = stacked_product(stacked({reads}, BLOCKS), own, DT, PRECISION)")
        lines.append("near_gram += tl.where(own_read, met, 0.0)")
        if _sees_own(form):
            lines.append(f"met = stacked_product(stacked({asks}, BLOCKS), own, DT, PRECISION)")
            lines.append("near_lower += tl.where(own_row, met, 0.0)")
    return _lines(lines)


def _sees_own(form: NormalForm) -> bool:
    return len(form.rows) > 1 and any(row.residual for row in form.rows)


def _own_gradients(form: NormalForm) -> str:
    """The gradients that pass between rows of one token."""
    lines: list[str] = []
    places = _places_of_writes(form)
    for place in places:
        writes, asks, reads = _own_tiles(form, place)
        mine = " | ".join(
            f"(near_rows % SPAN == {s})" for s, row in enumerate(form.rows) if row.write and row.decays == place
        )
        own = f" & ({mine})[None, :, None]" if len(places) > 1 else ""
        read_weight = [[_between(form, r, place, form.read.decays) or "one"] for r in TOKENS]
        lines.append(f"own = stacked(({writes}).to(DT), BLOCKS)")
        grown = "stacked_sum(tl.where(own_read, near_read, 0.0), own, DT, PRECISION)"
        plain = all(text == ["one"] for text in read_weight)
        lines.append(f"d_read += {grown}" + ("" if plain else f" * stacked({woven(read_weight)}, BLOCKS)"))
        asked = f"stacked(({reads}).to(DT), BLOCKS)"
        lines.append(f"d_write += stacked_sum(tl.where(own_write{own}, near_written, 0.0), {asked}, DT, PRECISION)")
        if _sees_own(form):
            weights = [
                [*(_between(form, r, place, _place(form, s, "residual")) or "one" for s in range(len(form.rows))),
                 *["one"] * (span(form) - len(form.rows))]
                for r in TOKENS
            ]  # fmt: skip
            grown = "stacked_sum(tl.where(own_row & below, near_pairs, 0.0), own, DT, PRECISION)"
            plain = all(text == "one" for token in weights for text in token)
            lines.append(f"d_residual += {grown}" + ("" if plain else f" * stacked({woven(weights)}, BLOCKS)"))
            above = f"tl.where(own_row & above{own}, near_pairs, 0.0)"
            lines.append(f"d_write += stacked_sum({above}, stacked(({asks}).to(DT), BLOCKS), DT, PRECISION)")
    return _lines(lines)


def _row(form: NormalForm, name: str, role: str, expression: Expression) -> str:
    parts = split(expression)
    sizes = "H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr"
    parameters = f"token, here, head, channel, {_pointers(form)}, {sizes}"
    if not expression:
        text = "tl.zeros((token.shape[0], channel.shape[0]), tl.float32)"
    else:
        text = f"({vector_text(parts.vector, 'here')}).to(tl.float32)"
        if parts.gates:
            text += f" * ({scale_text(parts, 'here')})[:, None]"
        elif parts.coefficient != 1.0:
            text += f" * {literal(parts.coefficient)}"
    return function(name, parameters, f"{role} address [N, BK] of one substep, in float32.", [f"return {text}"])


def _log_between(form: NormalForm) -> str:
    lines = ["logs = tl.zeros((token.shape[0], channel.shape[0]), tl.float32)"]
    for d, decay in enumerate(form.decays):
        given = decay.log_decay
        if isinstance(given, Operand):
            text = f"log_of_decay({load_text(given, 'token', 'here', 'channel')})"
            text += "[:, None]" if given.per == "head" else ""
        else:
            text = f"log_of_decay(tl.where(here, {given!r}, 0.0))[:, None]"
        lines += [f"if FIRST <= {d}:", f"    if LAST > {d}:", f"        logs += {text}"]
    return function(
        "log_between",
        _between_parameters(form),
        "The log decay [N, BK] of the decay points FIRST .. LAST - 1 of tokens.",
        [*lines, "return logs"],
    )


def _turn_between(form: NormalForm) -> str:
    lines = ["turns = tl.full((token.shape[0], channel.shape[0]), 1.0, tl.float32)"]
    for d, decay in enumerate(form.decays):
        if decay.sign is not None:
            load = load_text(decay.sign, "token", "here", "channel")
            wide = "[:, None]" if decay.sign.per == "head" else ""
            text = f"turns = tl.where({load}{wide} < 0, -turns, turns)"
            lines += [f"if FIRST <= {d}:", f"    if LAST > {d}:", f"        {text}"]
    return function(
        "turn_between",
        _between_parameters(form),
        "The sign [N, BK] of the decay points FIRST .. LAST - 1 of tokens.",
        [*lines, "return turns"],
    )


def _between_parameters(form: NormalForm) -> str:
    sizes = "FIRST: tl.constexpr, LAST: tl.constexpr, HV: tl.constexpr, K: tl.constexpr"
    return f"token, here, head, channel, {_pointers(form)}, {sizes}"


def _scaled_targets(form: NormalForm) -> list[int]:
    return [t for t, stream in enumerate(streams_of(form, "target")) if not stream.plain]


def _target_scale(form: NormalForm, t: int) -> str:
    lines = by_row(streams_of(form, "target")[t].factors, "tl.where(here, 0.0, 0.0)", factor_text)
    parameters = f"token, sub, here, head, {_pointers(form)}, HV: tl.constexpr"
    return function(f"target_scale_{t}", parameters, f"The numbers [N] that scale stream {t} of the targets.", lines)


def _target_factors(form: NormalForm) -> str:
    """Lines that write the numbers that scale targets in the serial kernels."""
    kept = factors_of(form)
    lines = [
        f"target_s{t} = target_scale_{t}(token, sub, here, head, {_pointers(form)}, HV)" for t in _scaled_targets(form)
    ]
    for each in kept:
        at = f"factors + (slot * {len(kept)} + {each.index}) * C + place"
        mask = "" if len(form.rows) == 1 else f", mask=sub == {each.row}"
        lines.append(f"tl.store({at}, target_s{each.stream}{mask})")
    return _lines(lines)
