"""The holes of the kernels `solve_channel` and `gradients_channel`."""

from __future__ import annotations

from collections.abc import Sequence

from archsearch.kernels.triton.channel.functions import target_factors
from archsearch.kernels.triton.channel.gradients import turn_back
from archsearch.kernels.triton.channel.quads import (
    TOKENS,
    has_signs,
    left_before,
    left_behind,
    left_between,
    own_pairs,
    quad_decays,
    quad_places,
    quad_rows,
    quad_turns,
    residual_tiles,
    weighed,
    woven,
    write_tiles,
)
from archsearch.kernels.triton.channel.strong import strong_holes
from archsearch.kernels.triton.gradients.streams import joined
from archsearch.kernels.triton.serial_rows import span
from archsearch.lowering import NormalForm

BEFORE = ("", "left_0", "(left_0 * left_1)", "(left_0 * left_1 * left_2)")
"""What decays leave from the quad's start to each of its tokens, that token's own apart."""
BEHIND = ("(left_1 * left_2 * left_3)", "(left_2 * left_3)", "left_3", "")
"""What decays leave from behind each token of the quad to its end."""
BEFORE_EACH = tuple((r, r - 1, f"left_{r - 1}") for r in (1, 2, 3))
"""Of the weights that grow with the tokens before: token, the one whose weight is known, what decays in between."""
BEHIND_EACH = tuple((r, r + 1, f"left_{r + 1}") for r in (2, 1, 0))
"""The same for what decays behind each token."""


def channel_holes(form: NormalForm) -> dict[str, str]:
    """The holes of the kernels of rules whose channels decay on their own."""
    read = [["q_0"], ["q_1"], ["q_2"], ["q_3"]]
    return {
        "quad_tokens": joined(f"token_{r} = 4 * quad + {r}\nhere_{r} = token_{r} < length" for r in TOKENS),
        "quad_decays": quad_decays(form),
        "quad_turns": quad_turns(form),
        "quad_rows": quad_rows(form),
        "quad_places": quad_places(form),
        "own_pairs": own_pairs(form),
        "mixed_0": woven(_mixed(form, (0, 1, 0, 1))),
        "mixed_1": woven(_mixed(form, (0, 0, 1, 1), ("left_1", "", "", "left_2"))),
        "asked_0": woven(read),
        "asked_1": woven([*read[:3], ["q_3 * left_2"]]),
        "late_rows": woven(weighed(residual_tiles(form), BEFORE)),
        "early_rows": woven(weighed(write_tiles(form), BEHIND)),
        "read_rows": woven(weighed(read, BEFORE)),
        "since": _chain("since", "starts", BEFORE_EACH),
        "until": _chain("until", "last - ends", BEHIND_EACH, turn=" * last_turn" if has_signs(form) else ""),
        "grown": _chain("grown", "-ends", BEHIND_EACH, "LIMIT"),
        "late": woven(weighed(residual_tiles(form), _named("since"))),
        "early": woven(weighed(write_tiles(form), _named("grown"))),
        "kept_write": woven(weighed(write_tiles(form), _named("until"))),
        "asked": woven(weighed(read, _named("since"))),
        "now_residual": woven(_now(form, "residual")),
        "now_write": woven(_now(form, "write")),
        "now_read": woven([[_times(f"since_{r}", left_between(form, r, 0, form.read.decays))] for r in TOKENS]),
        "turn_back": turn_back(form),
        "target_factors": target_factors(form),
        **strong_holes(form),
    }


def _now(form: NormalForm, role: str) -> list[list[str]]:
    """What decays, or grows, a row of each token and substep since the chunk's start, those of its own token too."""
    own, name = (left_before, "since") if role == "residual" else (left_behind, "grown")
    rows = range(len(form.rows))
    used = [bool(row.residual if role == "residual" else row.write) for row in form.rows]
    filled = [[_times(f"{name}_{r}", own(form, s, r) if used[s] else "") for s in rows] for r in TOKENS]
    return [[*token, *[f"{name}_{r}"] * (span(form) - len(token))] for r, token in enumerate(filled)]


def _mixed(form: NormalForm, late: Sequence[int], weights: Sequence[str] = ("", "", "", "")) -> list[list[str]]:
    """Residual rows of the quad's late tokens and write rows of its early ones."""
    writes, residuals = write_tiles(form), residual_tiles(form)
    return weighed([(residuals if late[r] else writes)[r] for r in TOKENS], weights)


def _chain(name: str, log: str, links: Sequence[tuple[int, int, str]], most: str = "0.0", turn: str = "") -> str:
    """A weight for each token of the quad: the exponential of `log`, at most `most`, times the quad's own decays."""
    first = links[0][1]
    return joined(
        [
            f"{name}_{first} = tl.exp(tl.minimum({log}, {most})){turn}",
            *(f"{name}_{r} = {name}_{o} * {left}" for r, o, left in links),
        ]
    )


def _named(name: str) -> list[str]:
    return [f"{name}_{r}" for r in TOKENS]


def _times(text: str, factor: str) -> str:
    return f"{text} * {factor}" if factor else text
