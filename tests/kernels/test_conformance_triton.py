"""The suite on the generated kernels: in float32 under Triton's interpreter, or on the device where there is one."""

import pytest
import torch

from archsearch.dsl import Rule
from archsearch.kernels.conformance import PROPERTIES, Shape, run_conformance
from archsearch.kernels.conformance.made_up import RULES
from archsearch.kernels.conformance.random_rules import random_rule
from archsearch.lowering import lower
from archsearch.mixers.zoo import rules

NAMED: dict[str, Rule] = {rule.name: rule for rule in (*rules.values(), *RULES)}
ALONE = "future_does_not_leak"
"""Asks nothing of a second sequence or head, and takes ten runs."""
QUICK = ("pieces_equal_whole", "steps_equal_whole", "packed_equals_separate", "value_heads_share_keys")
WIDE = ("kda", "q_delta", "eda", "mlstm", "signed_between", "previous_group", "bonus_expressions")
ELSEWHERE = ("chunk_matches_token_loop", "token_loop_follows_the_steps")
CASES = [
    *(("gated_delta_net", name) for name in PROPERTIES if name not in ELSEWHERE),
    *((rule, name) for rule in WIDE for name in QUICK),
    ("eda", ALONE),
    ("signed_between", ALONE),
]
"""The interpreter is slow: the whole suite on one rule, what handing over can break on those that differ most."""
RANDOM = range(1000, 1012)
AGREEMENT = "chunk_matches_token_loop"


def sizes(rule: Rule, *, batch: int, chunks: tuple[int, int]) -> tuple[Shape, tuple[int, int]]:
    """Two chunks of the larger size and three tokens. A chunk holds at least 32 rows, so one of a single row a token is
    twice as long."""
    factor = 2 if len(lower(rule).rows) == 1 else 1
    small, large = (factor * chunk for chunk in chunks)
    return Shape(batch, 2 * large + 3, 1, batch, key_dim=5, value_dim=7), (small, large)


def conforms(
    device: torch.device, rule: Rule, name: str, *, batch: int = 1, chunks: tuple[int, int] = (16, 16), seed: int = 0
) -> None:
    shape, chunk_sizes = sizes(rule, batch=batch, chunks=chunks)
    verdicts = run_conformance(
        rule,
        "triton",
        device,
        torch.float32,
        properties=[name],
        shape=shape,
        chunk_sizes=chunk_sizes,
        seed=seed,
    )
    assert verdicts[0].passed, f"{verdicts[0]}\n{rule}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_kernels_agree_with_the_token_loop(rule: Rule, interpreted: torch.device) -> None:
    conforms(interpreted, rule, AGREEMENT)


@pytest.mark.parametrize("rule", rules.values(), ids=lambda rule: rule.name)
def test_kernels_agree_at_two_chunk_sizes(rule: Rule, interpreted: torch.device) -> None:
    conforms(interpreted, rule, AGREEMENT, chunks=(16, 32))


@pytest.mark.parametrize(("rule", "name"), CASES)
def test_kernels_conform(rule: str, name: str, interpreted: torch.device) -> None:
    conforms(interpreted, NAMED[rule], name, batch=1 if name == ALONE else 2)


@pytest.mark.parametrize("seed", RANDOM)
def test_kernels_agree_on_random_rules(seed: int, interpreted: torch.device) -> None:
    conforms(interpreted, random_rule(seed), AGREEMENT, seed=seed)


def test_every_rule_meets_the_kernels(request: pytest.FixtureRequest) -> None:
    """A rule that falls out of the tables is seen."""
    assert len(NAMED) == 69
    if request.config.option.keyword or any("::" in argument for argument in request.config.args):
        return
    collected = [item for item in request.session.items if item.path == request.path]
    assert len(collected) == 36 + 33 + 12 + 7 * 4 + 2 + 12 + 1
