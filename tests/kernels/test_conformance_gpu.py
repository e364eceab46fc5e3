"""The suite on a CUDA device: every property of every rule in bfloat16, agreement in float32 and float16 too, and bits
that repeat. Named rules agree within the bounds of the table, and those that differ most meet every property within
them; random ones, and what others hand over, have those of the rule's own sensitivity.

Nearly all of it is compiling: cases of a rule share their kernels, and run in one process (see `tests/conftest.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from archsearch.dsl import Rule
from archsearch.kernels.conformance import PROPERTIES, Difficulty, Shape, run_conformance
from archsearch.kernels.conformance.made_up import LONG, RULES
from archsearch.kernels.conformance.peer_shapes import PACKED, SHAPES
from archsearch.kernels.conformance.random_rules import random_rule
from archsearch.kernels.conformance.setting import compare, differentiate
from archsearch.kernels.conformance.suite import setting_of
from archsearch.kernels.conformance.verdict import worst
from archsearch.kernels.dispatch import compile
from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.zoo import rules

gpu = pytest.mark.gpu
NAMED: dict[str, Rule] = {rule.name: rule for rule in (*rules.values(), *RULES)}
IN_FLOAT32 = ("gated_delta_net", "kda", "q_delta", "eda", "gated_delta_product", "signed_between", "previous_group")
"""Rules that differ most: they meet every property in float32 too, and all of them within the bounds of the table."""
AGREEMENT = "chunk_matches_token_loop"
ENDS = [
    Shape(batch=1, tokens=259, heads=2, value_heads=2, key_dim=256, value_dim=256),
    Shape(batch=1, tokens=131, heads=1, value_heads=1, key_dim=16, value_dim=16),
    Shape(batch=2, tokens=200, heads=2, value_heads=2, key_dim=32, value_dim=64),
    Shape(batch=2, tokens=500, heads=3, value_heads=3, key_dim=64, value_dim=100),
    Shape(batch=1, tokens=1500, heads=2, value_heads=2, key_dim=100, value_dim=60),
    Shape(batch=2, tokens=323, heads=2, value_heads=4, key_dim=60, value_dim=60),
]
"""The ends of the range of widths, and K other than V."""


def conforms(
    rule: Rule,
    name: str,
    dtype: torch.dtype,
    *,
    shape: Shape | None = None,
    chunk_sizes: tuple[int, int] | None = None,
    seed: int = 0,
) -> None:
    verdicts = run_conformance(
        rule,
        "triton",
        "cuda",
        dtype,
        properties=[name],
        shape=shape,
        chunk_sizes=chunk_sizes,
        seed=seed,
        strict=rule.name in NAMED and (name == AGREEMENT or rule.name in IN_FLOAT32),
    )
    assert verdicts[0].passed, f"{verdicts[0]}\n{rule}"


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rule", [*(delta_product(n, gated=True) for n in (5, 9)), *LONG], ids=lambda rule: rule.name)
def test_kernels_agree_on_long_tokens(rule: Rule, dtype: torch.dtype) -> None:
    conforms(rule, AGREEMENT, dtype)


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("seed", range(2000, 2012))
def test_kernels_agree_on_random_rules(seed: int, dtype: torch.dtype) -> None:
    conforms(random_rule(seed), AGREEMENT, dtype, seed=seed)


@gpu
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"T{shape.tokens}-HV{shape.value_heads}-D{shape.key_dim}")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_kernels_agree_at_the_shapes_of_a_peer(shape: Shape, dtype: torch.dtype) -> None:
    conforms(NAMED["gated_delta_net"], AGREEMENT, dtype, shape=shape, chunk_sizes=(64, 64))


@gpu
@pytest.mark.parametrize("shape", ENDS, ids=lambda shape: f"T{shape.tokens}-K{shape.key_dim}-V{shape.value_dim}")
@pytest.mark.parametrize("rule", ["gated_delta_net", "kda", "q_delta", "eda", "gdn2", "gated_delta_product"])
def test_kernels_agree_at_many_shapes(rule: str, shape: Shape) -> None:
    conforms(NAMED[rule], AGREEMENT, torch.bfloat16, shape=shape, chunk_sizes=(64, 64))


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("offsets", "width"), PACKED)
@pytest.mark.parametrize("rule", ["gated_delta_net", "q_delta"])
def test_packed_lengths_agree_with_float64(rule: str, offsets: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
    """Lengths that flash-linear-attention tests, at its bounds; the other side is the chunkwise form, which the token
    loop vouches for and which takes no minutes.
    """
    setting = setting_of(NAMED[rule], "triton", "cuda", dtype, strict=True)
    packed = setting.inputs(Shape(1, offsets[-1], 2, 4, width, width), difficulty=Difficulty.EASY)
    states = setting.inputs(Shape(len(offsets) - 1, 1, 2, 4, width, width), difficulty=Difficulty.EASY)
    inputs = replace(packed, initial_state=states.initial_state, state_slope=states.state_slope)
    double = inputs.mapped(lambda _, tensor: tensor.double())
    double = replace(
        double,
        initial_state=inputs.initial_state.double(),
        output_slope=inputs.output_slope.double(),
        state_slope=inputs.state_slope.double(),
    )
    at = torch.tensor(offsets, device="cuda")
    expected = differentiate(compile(NAMED[rule], "torch"), double, cu_seqlens=at)
    found = differentiate(compile(NAMED[rule], "triton"), inputs, cu_seqlens=at)
    verdict = worst("packed", compare(setting, "packed", found, expected, str(offsets), hard=False))
    assert verdict.passed, verdict


@gpu
@pytest.mark.parametrize("dtype", [torch.float16], ids=str)
@pytest.mark.parametrize("rule", rules)
def test_kernels_agree_in_half_precision(rule: str, dtype: torch.dtype) -> None:
    conforms(NAMED[rule], AGREEMENT, dtype, chunk_sizes=(64, 64))


@gpu
@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("rule", NAMED.values(), ids=lambda rule: rule.name)
def test_kernels_conform(rule: Rule, name: str) -> None:
    conforms(rule, name, torch.bfloat16)


@gpu
@pytest.mark.parametrize("dtype", [torch.float32], ids=str)
@pytest.mark.parametrize(
    ("rule", "name"),
    [(rule, name) for rule in NAMED for name in PROPERTIES if name == AGREEMENT or rule in IN_FLOAT32],
)
def test_kernels_conform_in_float32(rule: str, name: str, dtype: torch.dtype) -> None:
    conforms(NAMED[rule], name, dtype)


def test_every_rule_meets_every_property(collected: Counter[str]) -> None:
    """Counted wherever tests are collected, with a device or without: a rule that falls out of the tables is seen."""
    assert (len(NAMED), len(rules), len(RULES), len(PROPERTIES)) == (69, 33, 36, 14)
    assert set(IN_FLOAT32) < set(NAMED)
    assert collected == {
        "test_kernels_conform": 69 * 14,
        "test_kernels_conform_in_float32": 69 + 7 * 13,
        "test_kernels_agree_in_half_precision": 33,
        "test_kernels_agree_on_long_tokens": 2 * 9,
        "test_kernels_agree_on_random_rules": 2 * 12,
        "test_kernels_agree_at_the_shapes_of_a_peer": 2 * 12,
        "test_kernels_agree_at_many_shapes": 6 * 6,
        "test_packed_lengths_agree_with_float64": 2 * 4 * 2,
        "test_every_rule_meets_every_property": 1,
    }
