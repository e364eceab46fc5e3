"""The ready spaces: each is drawn from, counted, built, and has the named rules that its text promises."""

import random
from dataclasses import replace

import pytest
import torch

import archsearch
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.spaces.counting import census
from archsearch.spaces.lookup import READY, find_space
from archsearch.spaces.resolution import at_random, find_rule, resolve

COUNTS = {  # structures, rules, distinct rules, distinct with the layer's sources
    "delta_family": (36, 36, 27, 36),
    "erases": (25, 25, 19, 25),
    "decays": (24, 10, 10, 10),
    "hybrids": (56, 2, 2, 2),
    "hyperparameters": (15_552, 1, 1, 1),
}
MEMBERS = {
    "delta_family": ("delta_net", "gated_delta_net", "kda", "q_delta", "eda", "eda_scalar", "eda_q_delta"),
    "erases": ("gated_delta_net", "eda_scalar"),
    "decays": ("linear", "simple_gla", "gla", "delta_net", "gated_delta_net", "kda", "ckda"),
    "hybrids": ("gated_delta_net", "kda"),
    "hyperparameters": ("gated_delta_net",),
}


def test_every_ready_space_is_tested() -> None:
    assert set(COUNTS) == set(READY) == set(MEMBERS)


@pytest.mark.parametrize("name", READY)
def test_it_is_as_large_as_its_text_says(name: str) -> None:
    found = census(find_space(name))
    assert (found.structures, found.rules, found.distinct_rules, found.distinct_sources) == COUNTS[name]
    assert found.whole and not found.broken
    assert not any(collapse.same_sources for collapse in found.collapses)


@pytest.mark.parametrize("name", READY)
def test_points_drawn_from_it_replay_and_make_models(name: str) -> None:
    space, source = find_space(name), random.Random(7)
    for index in range(12):
        point = space.resolve(at_random(source))
        assert resolve(space, point.choices) == point
        with torch.device("cpu" if index < 4 else "meta"):
            model = LanguageModel(point.rule, replace(point.model, width=32), point.layer, 16)
        if index < 4:
            assert model(torch.arange(8)[None]).isfinite().all()


@pytest.mark.parametrize(("name", "rule"), [(name, rule) for name, rules in MEMBERS.items() for rule in rules])
def test_named_rules_are_points_of_it(name: str, rule: str) -> None:
    assert find_rule(find_space(name), archsearch.rules[rule]) is not None
