"""The backend against the token loop: what a rule means is what runs."""

from __future__ import annotations

import torch

from archsearch.kernels.conformance.inputs import Difficulty
from archsearch.kernels.conformance.sensitivity import Sensitivity
from archsearch.kernels.conformance.setting import Outcome, Setting, compare, differentiate, token_loop
from archsearch.kernels.conformance.verdict import Verdict, worst

NAME = "chunk_matches_token_loop"


def chunk_matches_token_loop(setting: Setting) -> Verdict:
    """Output, state and every gradient, initial state included, at two chunk sizes: a wrong forward may hide behind a
    consistent backward, and at one chunk size a wrong order of tokens may hide. Short floats meet easy inputs too,
    where their bounds are tighter; their bounds widen with the sensitivity of the rule itself, unless it is strict.
    """
    verdicts: list[Verdict] = []
    easy = [Difficulty.EASY] if setting.dtype in (torch.bfloat16, torch.float16) else []
    for difficulty in (Difficulty.HARD, *easy):
        inputs = setting.inputs(difficulty=difficulty)
        expected = token_loop(setting.rule, inputs)
        sensitivity = Sensitivity(setting.rule, inputs, expected)
        for chunk in dict.fromkeys(setting.chunk_sizes):
            found = differentiate(setting.compiled(chunk), inputs)
            where = f"{difficulty.value} inputs, chunk {chunk}{_beyond(setting, expected)}"
            judged = compare(setting, NAME, found, expected, where, hard=difficulty is Difficulty.HARD)
            verdicts += judged if setting.strict else sensitivity.widened(setting, found, judged)
    return worst(NAME, verdicts)


def _beyond(setting: Setting, expected: Outcome) -> str:
    """What no backend can help: results that the dtype of the values has no numbers for."""
    largest = max(
        (x.abs().max().item() for x in (expected.output, *expected.gradients.values()) if x.numel()), default=0.0
    )
    if largest <= torch.finfo(setting.dtype).max:
        return ""
    return f"; the token loop itself reaches {largest:.1e}, which {setting.dtype} cannot hold"
