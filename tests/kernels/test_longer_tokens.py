"""Rules of more than four rows a token: cut into shorter tokens they mean the same, and the kernels run them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
import torch
from torch import Tensor

from archsearch.dsl import Rule
from archsearch.dsl.primitives import Read
from archsearch.kernels import reference
from archsearch.kernels.call import checked
from archsearch.kernels.conformance import Shape, draw, made_up, run_conformance
from archsearch.kernels.conformance.random_rules import random_rule
from archsearch.kernels.conformance.setting import relative_error
from archsearch.kernels.dispatch import compile
from archsearch.kernels.triton.cutting import cut
from archsearch.kernels.triton.longer_tokens import lengthened
from archsearch.kernels.triton.patterns import MOST_ROWS
from archsearch.lowering import lower
from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.zoo import rules

LONG = (delta_product(5, gated=True), delta_product(9, gated=True), *made_up.LONG)
NAMED = {rule.name: rule for rule in LONG}
SHAPE = Shape(batch=2, tokens=19, heads=1, value_heads=2, key_dim=5, value_dim=7)
SMALL = Shape(batch=1, tokens=3, heads=1, value_heads=1, key_dim=5, value_dim=7)
AGREES = "chunk_matches_token_loop"
HANDED_OVER = ("packed_equals_separate", "pieces_equal_whole", "steps_equal_whole", "value_heads_share_keys")


def spliced(seed: int) -> Rule:
    """The steps of two or three random rules after each other, and the read of one of them."""
    chance = Random(seed)
    pieces = [list(random_rule(number).steps) for number in chance.sample(range(3000), chance.choice((2, 3)))]
    reading = chance.randrange(len(pieces))
    steps = [step for i, piece in enumerate(pieces) for step in piece if i == reading or not isinstance(step, Read)]
    return Rule(f"spliced_{seed}", *steps)


def means_the_same(rule: Rule) -> None:
    """The token loop of the cut form against that of the rule, in float64."""
    form = lower(rule)
    shorter = cut(form)
    assert shorter is not None and len(shorter.form.rows) <= MOST_ROWS
    inputs = draw(form, Shape(2, 5, 1, 2, 4, 3))
    call = checked(form, inputs.tensors, inputs.initial_state, None, None)
    expected, found = reference.run(form, call), reference.run(shorter.form, lengthened(shorter, call))
    assert relative_error(found.output[:, shorter.reads_at :: shorter.times], expected.output) < 1e-12
    assert relative_error(found.state[:, :, :4], expected.state) < 1e-12
    assert not found.state[:, :, 4:].any(), "spare channels are left empty"


@pytest.mark.parametrize("rule", LONG, ids=lambda rule: rule.name)
def test_a_cut_rule_means_the_same(rule: Rule) -> None:
    means_the_same(rule)


def test_any_long_rule_can_be_cut() -> None:
    long = [rule for rule in map(spliced, range(120)) if len(lower(rule).rows) > MOST_ROWS]
    assert len(long) > 40
    assert {bool(shorter.spare) for rule in long if (shorter := cut(lower(rule)))} == {True, False}
    for rule in long:
        means_the_same(rule)


def test_short_rules_are_left_alone() -> None:
    assert all(cut(lower(rule)) is None for rule in (*rules.values(), *made_up.RULES))


@pytest.mark.parametrize(("count", "times", "rows"), [(5, 2, 3), (8, 2, 4), (9, 3, 3), (17, 5, 4)])
def test_tokens_are_as_few_as_can_be_and_balanced(count: int, times: int, rows: int) -> None:
    shorter = cut(lower(delta_product(count, gated=True)))
    assert shorter is not None
    assert (shorter.times, len(shorter.form.rows), shorter.spare, len(shorter.form.decays)) == (times, rows, 0, 1)
    assert shorter.headwise, "addresses that value heads share are not copied for each"


@pytest.mark.parametrize("rule", LONG, ids=lambda rule: rule.name)
def test_kernels_agree_with_the_token_loop(rule: Rule, interpreted: torch.device) -> None:
    verdicts = run_conformance(
        rule, "triton", interpreted, torch.float32, properties=[AGREES], shape=SHAPE, chunk_sizes=(8, 8)
    )
    assert verdicts[0].passed, str(verdicts[0])


@pytest.mark.parametrize("rule", ["gated_delta_product5", "joint"])
def test_kernels_conform(rule: str, interpreted: torch.device) -> None:
    verdicts = run_conformance(
        NAMED[rule], "triton", interpreted, torch.float32, properties=HANDED_OVER, shape=SHAPE, chunk_sizes=(8, 8)
    )
    assert all(verdict.passed for verdict in verdicts), "\n".join(map(str, verdicts))


def test_the_compiler_keeps_one_graph(interpreted: torch.device) -> None:
    rule = NAMED["previous_late"]
    compiled, inputs = compile(rule, "triton"), draw(lower(rule), SMALL, dtype=torch.float32, device=interpreted)
    given = {name: tensor.requires_grad_(not name.endswith("_sign")) for name, tensor in inputs.tensors.items()}
    leaves = [tensor for tensor in given.values() if tensor.requires_grad]

    def loss(given: dict[str, Tensor]) -> Tensor:
        result = compiled(initial_state=inputs.initial_state, scale=None, **given)
        return result.output.square().sum() + result.state.sum()

    backend = "inductor" if interpreted.type == "cuda" else "aot_eager"
    fast: Callable[[dict[str, Tensor]], Tensor] = torch.compile(loss, fullgraph=True, backend=backend)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    expected, found = (torch.autograd.grad(run(given), leaves) for run in (loss, fast))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_source_is_that_of_the_shorter_tokens() -> None:
    source = compile(NAMED["gated_delta_product5"], "torch").source
    assert "gated_delta_product5_in_2(address_0, " in source and "C * 4 rows a chunk" in source
