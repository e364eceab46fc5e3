"""The backend against the token loop: what a rule means is what runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from archsearch.kernels.conformance.inputs import Difficulty, Inputs, losing, smooth
from archsearch.kernels.conformance.sensitivity import Sensitivity
from archsearch.kernels.conformance.setting import Outcome, Setting, compare, differentiate, token_loop
from archsearch.kernels.conformance.verdict import Verdict, worst

NAME = "chunk_matches_token_loop"
LOST_FROM, LOST_EVERY = 7, 16
"""So that every chunk of 16 tokens or more has such a token inside."""


def chunk_matches_token_loop(setting: Setting) -> Verdict:
    """Output, state and every gradient, initial state included, at two chunk sizes: a wrong forward may hide behind a
    consistent backward, and at one chunk size a wrong order of tokens may hide. Short floats meet easy inputs too,
    where their bounds are tighter; their bounds widen with the sensitivity of the rule itself, unless it is strict.
    Where channels decay, one of them is lost in every chunk besides: a backend may have a way of its own for that.
    """
    verdicts = _judged(setting, setting.inputs(), "hard inputs", setting.chunk_sizes, hard=True)
    easy = setting.inputs(difficulty=Difficulty.EASY)
    if setting.dtype in (torch.bfloat16, torch.float16):
        verdicts += _judged(setting, easy, "easy inputs", setting.chunk_sizes, hard=False)
    if setting.form.decay_kind == "channel":
        lost = losing(setting.form, easy, range(LOST_FROM, setting.shape.tokens, LOST_EVERY))
        lost = smooth(setting.form, lost)
        where = f"easy inputs, a channel lost every {LOST_EVERY} tokens"
        verdicts += _judged(setting, lost, where, setting.chunk_sizes[:1], hard=False)
    return worst(NAME, verdicts)


def _judged(setting: Setting, inputs: Inputs, what: str, chunks: Sequence[int], *, hard: bool) -> list[Verdict]:
    expected = token_loop(setting.rule, inputs)
    sensitivity = Sensitivity(setting.rule, inputs, expected)
    verdicts: list[Verdict] = []
    for chunk in dict.fromkeys(chunks):
        found = differentiate(setting.compiled(chunk), inputs)
        where = f"{what}, chunk {chunk}{_beyond(setting, expected)}"
        judged = compare(setting, NAME, found, expected, where, hard=hard)
        verdicts += judged if setting.strict else sensitivity.widened(setting, found, judged)
    return verdicts


def _beyond(setting: Setting, expected: Outcome) -> str:
    """What no backend can help: results that the dtype of the values has no numbers for."""
    largest = max(
        (x.abs().max().item() for x in (expected.output, *expected.gradients.values()) if x.numel()), default=0.0
    )
    if largest <= torch.finfo(setting.dtype).max:
        return ""
    return f"; the token loop itself reaches {largest:.1e}, which {setting.dtype} cannot hold"
