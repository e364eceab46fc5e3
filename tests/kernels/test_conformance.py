"""The suite on every rule of the zoo, on made-up rules that use the whole language, and on random ones, in float64."""

from collections import Counter

import pytest
import torch

from archsearch.dsl import Rule
from archsearch.errors import BackendError
from archsearch.kernels.conformance import PROPERTIES, Verdict, assert_conforms, run_conformance
from archsearch.kernels.conformance.made_up import RULES
from archsearch.kernels.conformance.random_rules import random_rule
from archsearch.mixers.zoo import rules

NAMED = [*rules.values(), *RULES]
RANDOM = range(60)
ON_RANDOM_RULES = ("chunk_matches_token_loop", "pieces_equal_whole", "packed_equals_separate", "future_does_not_leak")


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("rule", NAMED, ids=lambda rule: rule.name)
def test_torch_conforms(rule: Rule, name: str) -> None:
    assert_conforms(rule, "torch", properties=[name])


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("rule", NAMED, ids=lambda rule: rule.name)
def test_token_loop_conforms(rule: Rule, name: str) -> None:
    assert_conforms(rule, "reference", properties=[name])


@pytest.mark.parametrize("seed", RANDOM)
def test_torch_conforms_on_random_rules(seed: int) -> None:
    assert_conforms(random_rule(seed), "torch", properties=ON_RANDOM_RULES, seed=seed)


@pytest.mark.parametrize("rule", NAMED, ids=lambda rule: rule.name)
def test_torch_agrees_in_float32(rule: Rule) -> None:
    properties = ["chunk_matches_token_loop", "edges_stay_finite"]
    assert_conforms(rule, "torch", dtype=torch.float32, properties=properties)


def test_every_rule_meets_every_property(collected: Counter[str]) -> None:
    """A rule or a property that falls out of the tables is seen."""
    assert len({rule.name for rule in NAMED}) == len(NAMED) == 69
    assert (len(rules), len(RULES), len(PROPERTIES)) == (33, 36, 14)
    assert collected["test_torch_conforms"] == collected["test_token_loop_conforms"] == 69 * 14
    assert collected["test_torch_agrees_in_float32"] == 69
    assert collected["test_torch_conforms_on_random_rules"] == 60
    assert collected.total() == 2 * 69 * 14 + 69 + 60 + 5


def test_a_verdict_is_one_line() -> None:
    assert str(Verdict("causal", 1e-3, 1e-4, "token 3")) == "FAILED  causal: error 1.00e-03, bound 1.00e-04  token 3"
    assert str(Verdict("causal", 0.0, 1e-4)) == "passed  causal: error 0.00e+00, bound 1.00e-04"


def test_nan_passes_no_bound() -> None:
    assert not Verdict("finite", float("nan"), 1e9).passed


def test_an_unknown_property_is_refused() -> None:
    with pytest.raises(BackendError) as caught:
        run_conformance(rules["linear"], properties=["fast"])
    assert str(caught.value) == f"no property is called 'fast'; the suite has {', '.join(PROPERTIES)}"


def test_a_dtype_without_bounds_is_refused() -> None:
    with pytest.raises(BackendError) as caught:
        run_conformance(rules["linear"], dtype=torch.float8_e4m3fn)
    assert str(caught.value) == (
        "the suite has bounds for torch.float64, torch.float32, torch.bfloat16, torch.float16; got torch.float8_e4m3fn"
    )
