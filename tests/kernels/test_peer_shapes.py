"""The torch form at the sizes at which flash-linear-attention tests its gated delta rule; test_conformance_gpu has the
kernels. Heads and rows of a batch are independent, so that one of each is enough here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from archsearch.kernels.conformance import Difficulty, Shape, run_conformance
from archsearch.kernels.conformance.peer_shapes import PACKED, SHAPES
from archsearch.kernels.conformance.setting import compare, differentiate, token_loop
from archsearch.kernels.conformance.suite import setting_of
from archsearch.kernels.conformance.verdict import worst
from archsearch.kernels.dispatch import compile
from archsearch.mixers.zoo import rules

RULE = rules["gated_delta_net"]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"T{shape.tokens}-HV{shape.value_heads}-D{shape.key_dim}")
def test_torch_agrees_at_the_shapes_of_a_peer(shape: Shape) -> None:
    one = replace(shape, batch=1, heads=1, value_heads=2 if shape.value_heads > shape.heads else 1)
    verdicts = run_conformance(
        RULE, "torch", dtype=torch.float32, properties=["chunk_matches_token_loop"], shape=one, chunk_sizes=(32, 64)
    )
    assert verdicts[0].passed, verdicts[0]


@pytest.mark.parametrize(("offsets", "width"), PACKED, ids=lambda given: str(given).replace(", ", "-"))
def test_torch_agrees_at_the_packed_lengths_of_a_peer(offsets: tuple[int, ...], width: int) -> None:
    setting = setting_of(RULE, "torch", dtype=torch.float32)
    packed = setting.inputs(Shape(1, offsets[-1], 1, 1, width, width), difficulty=Difficulty.EASY)
    states = setting.inputs(Shape(len(offsets) - 1, 1, 1, 1, width, width), difficulty=Difficulty.EASY)
    inputs = replace(packed, initial_state=states.initial_state, state_slope=states.state_slope)
    found = differentiate(compile(RULE, "torch"), inputs, cu_seqlens=torch.tensor(offsets))
    expected = token_loop(RULE, inputs, cu_seqlens=torch.tensor(offsets))
    verdict = worst("packed", compare(setting, "packed", found, expected, str(offsets)))
    assert verdict.passed, verdict
