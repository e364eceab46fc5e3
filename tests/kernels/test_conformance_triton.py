"""The suite on the generated kernels: in float32 under Triton's interpreter, or on the device where there is one."""

from collections import Counter

import pytest
import torch

from archsearch.dsl import Rule
from archsearch.kernels.conformance import PROPERTIES, Shape, run_conformance
from archsearch.kernels.conformance.made_up import RULES
from archsearch.kernels.conformance.random_rules import random_rule
from archsearch.lowering import lower
from archsearch.mixers.zoo import rules

NAMED: dict[str, Rule] = {rule.name: rule for rule in (*rules.values(), *RULES)}
AGREEMENT = "chunk_matches_token_loop"
OTHERS = [name for name in PROPERTIES if name != AGREEMENT]
TWO_ROWS = ("result_does_not_depend_on_the_batch", "padding_never_leaks")
"""What they ask is of a batch; the interpreter takes its time for every row and head, so others have one."""
BOTH = "gated_delta_net"
"""Meets every property with two rows and heads."""
RANDOM = range(1000, 1012)


def sizes(rule: Rule, *, batch: int, chunks: tuple[int, int]) -> tuple[Shape, tuple[int, int]]:
    """Two chunks of the larger size and three tokens. A chunk holds at least 32 rows, so one of a single row a token is
    twice as long."""
    factor = 2 if len(lower(rule).rows) == 1 else 1
    small, large = (factor * chunk for chunk in chunks)
    return Shape(batch, 2 * large + 3, 1, batch, key_dim=5, value_dim=7), (small, large)


def one_chunk_and_a_half(rule: Rule, name: str) -> tuple[Shape, tuple[int, int]]:
    """The smallest sizes at which a property other than agreement says something: a chunk, and another partly full.
    Edges take longest: those that are none of decays have half a chunk.
    """
    _, (chunk, _) = sizes(rule, batch=1, chunks=(16, 16))
    rows = 2 if rule.name == BOTH or name in TWO_ROWS else 1
    heads = (2, 4) if name == "value_heads_share_keys" else (1, 2 if rule.name == BOTH else 1)
    least = chunk // 2 if name == "edges_stay_finite" and rule.name != BOTH else chunk
    return Shape(rows, chunk + chunk // 2 + 3, *heads, key_dim=5, value_dim=7), (least, chunk)


def conforms(
    device: torch.device, rule: Rule, name: str, chosen: tuple[Shape, tuple[int, int]], *, seed: int = 0
) -> None:
    shape, chunks = chosen
    (verdict,) = run_conformance(
        rule, "triton", device, torch.float32, properties=[name], shape=shape, chunk_sizes=chunks, seed=seed
    )
    assert verdict.passed, f"{verdict}\n{rule}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_kernels_agree_with_the_token_loop(rule: Rule, interpreted: torch.device) -> None:
    conforms(interpreted, rule, AGREEMENT, sizes(rule, batch=1, chunks=(16, 16)))


@pytest.mark.parametrize("rule", rules.values(), ids=lambda rule: rule.name)
def test_kernels_agree_at_two_chunk_sizes(rule: Rule, interpreted: torch.device) -> None:
    conforms(interpreted, rule, AGREEMENT, sizes(rule, batch=1, chunks=(16, 32)))


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("rule", NAMED.values(), ids=lambda rule: rule.name)
def test_kernels_conform(rule: Rule, name: str, interpreted: torch.device) -> None:
    conforms(interpreted, rule, name, one_chunk_and_a_half(rule, name))


@pytest.mark.parametrize("seed", RANDOM)
def test_kernels_agree_on_random_rules(seed: int, interpreted: torch.device) -> None:
    rule = random_rule(seed)
    conforms(interpreted, rule, AGREEMENT, sizes(rule, batch=1, chunks=(16, 16)), seed=seed)


def test_every_rule_meets_every_property(collected: Counter[str]) -> None:
    """A rule or a property that falls out of the tables is seen."""
    assert (len(NAMED), len(rules), len(RULES), len(OTHERS)) == (69, 33, 36, 13)
    assert collected == {
        "test_kernels_agree_with_the_token_loop": 36,
        "test_kernels_agree_at_two_chunk_sizes": 33,
        "test_kernels_conform": 69 * 13,
        "test_kernels_agree_on_random_rules": 12,
        "test_every_rule_meets_every_property": 1,
    }
