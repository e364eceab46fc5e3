"""Sizes solved for a budget: near what is written, within the tolerance, as live models count them."""

import random
from dataclasses import replace

import pytest
import torch

import archsearch
from archsearch.errors import SpaceError
from archsearch.holes import integer, one_of
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.models import counts
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.spaces.budgets import sized, targets
from archsearch.spaces.delta_family import SPACE
from archsearch.spaces.lookup import find_space
from archsearch.spaces.options import QUANTITIES, Budget
from archsearch.spaces.resolution import at_random, baseline, middle, resolve
from archsearch.spaces.sizes import Setting
from archsearch.spaces.space import Point, Space

SETTING = Setting(vocabulary=256, length=128)
GDN = "gated_delta_net"


def matched(**budget: int | str | float) -> Space:
    return replace(SPACE, budget=Budget(**budget))  # type: ignore[arg-type]


def live(point: Point) -> dict[str, float]:
    """What a model without numbers counts."""
    with torch.device("meta"):
        model = LanguageModel(point.rule, point.model, point.layer, SETTING.vocabulary)
        state = sum(part.nbytes for part in model.init_cache(1))
    return {
        "parameters": model.parameter_count,
        "state_bytes": state,
        "flops_per_token": model.flops_per_token(SETTING.length),
    }


BUDGETS = {  # 40 random points of each: 200
    "delta_family": Budget(state_bytes=GDN, parameters=GDN, tolerance=0.02),
    "erases": Budget(state_bytes=100_000, parameters=5_000_000, tolerance=0.02),
    "decays": Budget(state_bytes=50_000, flops_per_token=2_000_000, tolerance=0.02),
    "hybrids": Budget(parameters=GDN, tolerance=0.02),
    "hyperparameters": Budget(parameters=2_000_000, tolerance=0.02),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_random_points_cost_what_the_budget_says(name: str) -> None:
    space, source = replace(find_space(name), budget=BUDGETS[name]), random.Random(11)
    asked, space = targets(space, SETTING).numbers, sized(space, SETTING)
    assert set(asked) == {quantity for quantity in QUANTITIES if getattr(BUDGETS[name], quantity) is not None}
    for _ in range(40):
        point = space.resolve(at_random(source))
        assert not point.missed
        found = live(point)
        for quantity, number in asked.items():
            assert found[quantity] == pytest.approx(number, rel=0.02)


def test_a_point_that_costs_what_is_asked_stays_as_it_is_written() -> None:
    space = sized(matched(parameters=GDN, state_bytes=GDN, flops_per_token=GDN), SETTING)
    point = resolve(space, baseline(space, GDN, archsearch.rules[GDN]))
    assert (point.model, point.layer) == (SPACE.model, SPACE.layer.only(()))


def test_the_state_is_solved_by_the_heads_the_rest_by_width_and_mlp() -> None:
    choices = {
        "rule/decay": "channel",
        "rule/erase": "learned",
        "rule/residual": "none",
        "training/learning_rate": 5e-3,
    }
    written = resolve(SPACE, choices)
    state = resolve(sized(matched(state_bytes=40_000), SETTING), choices)
    assert (state.model, written.model.mlp_width) == (written.model, 336)
    assert state.layer.head_dim not in (None, 64)
    size = resolve(sized(matched(parameters=5_000_000), SETTING), choices)
    assert size.layer == written.layer and size.model.width % 16 == 0
    assert 2.0 <= size.model.mlp_ratio <= 3.5 and size.model.mlp_width % 16 == 0


def test_round_sizes_are_preferred() -> None:
    space = sized(matched(parameters=20_000_000), SETTING)
    source = random.Random(2)
    assert all(space.resolve(at_random(source)).model.width % 16 == 0 for _ in range(20))


def test_a_model_without_mlp_takes_the_rest_in_its_values() -> None:
    space = replace(matched(parameters=60_000), model=Model(width=64, heads=2, layers=1, mlp_ratio=0))
    point = sized(space, SETTING).resolve(lambda path, hole: middle(hole))
    assert not point.missed and point.model.mlp_width == 0
    assert live(point)["parameters"] == pytest.approx(60_000, rel=0.01)


def test_depth_and_heads_may_be_searched_at_one_size() -> None:
    model = Model(width=128, heads=one_of(1, 2, 4), layers=integer(1, 6))
    space = sized(replace(matched(parameters=GDN, state_bytes=30_000), model=model), SETTING)
    source = random.Random(3)
    points = [space.resolve(at_random(source)) for _ in range(12)]
    assert len({point.model.layers for point in points}) > 3
    for point in points:
        assert not point.missed
        assert live(point)["state_bytes"] == pytest.approx(30_000, rel=0.01)


def test_a_named_rule_is_counted_in_the_sizes_that_the_space_writes() -> None:
    asked = targets(matched(parameters=GDN), SETTING).numbers["parameters"]
    assert asked == counts.parameters(archsearch.rules[GDN], SPACE.model, Layer(), SETTING.vocabulary)
    outside = targets(matched(state_bytes="mamba2"), SETTING).numbers["state_bytes"]
    assert outside == counts.state_bytes(archsearch.rules["mamba2"], SPACE.model, None, SETTING.length)


def test_what_no_sizes_meet_is_said_with_its_distance() -> None:
    space = matched(state_bytes=100, parameters=GDN)
    point = sized(space, SETTING).resolve(lambda path, hole: middle(hole))
    assert set(point.missed) == {"state_bytes"}
    assert point.missed["state_bytes"] == pytest.approx(live(point)["state_bytes"] / 100 - 1)
    assert targets(space, SETTING).words(point) == [
        "budget.state_bytes asks for 100; the nearest sizes give 832 (+732.0%)"
    ]


def test_a_solved_size_is_no_part_of_the_space() -> None:
    space = matched(parameters=GDN)
    solved = sized(space, SETTING)
    assert solved.hash == space.hash and solved == space and str(solved) == str(space)
    assert sized(SPACE, SETTING) is SPACE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": Model(width=one_of(64, 128)), "budget": Budget(parameters=10)},
            "a size is solved or searched, not both; got model/width, which budget.parameters solves: "
            "give it one value or take budget.parameters out",
        ),
        (
            {"layer": Layer(head_dim=one_of(64, 128)), "budget": Budget(state_bytes=GDN)},
            "a size is solved or searched, not both; got layer/head_dim, which budget.state_bytes solves: "
            "give it one value or take budget.state_bytes out",
        ),
    ],
)
def test_a_size_is_solved_or_searched(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpaceError) as error:
        replace(SPACE, **{"layer": Layer(), **changes})  # type: ignore[arg-type]
    assert str(error.value) == message


def test_a_budget_that_names_no_rule_is_refused() -> None:
    with pytest.raises(SpaceError) as error:
        targets(matched(parameters="20M"), SETTING)
    assert str(error.value).startswith("budget.parameters must be a number or the name of a rule: unknown rule '20M'")
