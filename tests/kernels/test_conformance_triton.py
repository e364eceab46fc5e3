"""The suite on the generated kernels: in float32 under Triton's interpreter, or on the device where there is one."""

import pytest
import torch

from archsearch.dsl import Rule
from archsearch.kernels.conformance import PROPERTIES, Shape, run_conformance
from archsearch.kernels.conformance.made_up import RULES
from archsearch.kernels.conformance.random_rules import random_rule
from archsearch.mixers.zoo import rules

NAMED: dict[str, Rule] = {rule.name: rule for rule in (*rules.values(), *RULES)}
QUICK = ("pieces_equal_whole", "steps_equal_whole", "packed_equals_separate", "value_heads_share_keys")
WIDE = ("kda", "q_delta", "eda", "signed_between", "previous_group", "bonus_expressions")
CASES = [
    *(("gated_delta_net", name) for name in PROPERTIES if name != "chunk_matches_token_loop"),
    *((rule, name) for rule in WIDE for name in QUICK),
    ("eda", "future_does_not_leak"),
]
"""The interpreter is slow: the whole suite on one rule, what handing over can break on those that differ most."""
RANDOM = range(1000, 1012)
AGREEMENT = "chunk_matches_token_loop"
SMALLEST = (Shape(batch=1, tokens=35, heads=1, value_heads=1, key_dim=5, value_dim=7), (16, 16))
SMALL = (Shape(batch=2, tokens=35, heads=1, value_heads=2, key_dim=5, value_dim=7), (16, 16))
TWO_CHUNKS = (Shape(batch=1, tokens=67, heads=1, value_heads=1, key_dim=5, value_dim=7), (16, 32))


def conforms(device: torch.device, rule: Rule, name: str, sizes: tuple[Shape, tuple[int, int]], seed: int = 0) -> None:
    shape, chunks = sizes
    verdicts = run_conformance(
        rule,
        "triton",
        device,
        torch.float32,
        properties=[name],
        shape=shape,
        chunk_sizes=chunks,
        seed=seed,
    )
    assert verdicts[0].passed, f"{verdicts[0]}\n{rule}"


@pytest.mark.parametrize("rule", NAMED.values(), ids=lambda rule: rule.name)
def test_kernels_agree_with_the_token_loop(rule: Rule, interpreted: torch.device) -> None:
    conforms(interpreted, rule, AGREEMENT, SMALLEST)


@pytest.mark.parametrize("rule", rules.values(), ids=lambda rule: rule.name)
def test_kernels_agree_at_two_chunk_sizes(rule: Rule, interpreted: torch.device) -> None:
    conforms(interpreted, rule, AGREEMENT, TWO_CHUNKS)


@pytest.mark.parametrize(("rule", "name"), CASES)
def test_kernels_conform(rule: str, name: str, interpreted: torch.device) -> None:
    conforms(interpreted, NAMED[rule], name, SMALL)


@pytest.mark.parametrize("seed", RANDOM)
def test_kernels_agree_on_random_rules(seed: int, interpreted: torch.device) -> None:
    conforms(interpreted, random_rule(seed), AGREEMENT, SMALLEST, seed)


def test_every_rule_meets_the_kernels(request: pytest.FixtureRequest) -> None:
    """A rule that falls out of the tables is seen."""
    assert len(NAMED) == 48
    if request.config.option.keyword or any("::" in argument for argument in request.config.args):
        return
    collected = [item for item in request.session.items if item.path == request.path]
    assert len(collected) == 48 + 14 + 12 + 6 * 4 + 1 + 12 + 1
