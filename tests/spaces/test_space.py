"""Spaces: paths, conditions by structure, points that replay, hashes, and what is refused."""

import random
from dataclasses import replace

import pytest

import archsearch
from archsearch import holes
from archsearch.dsl import Rule, decay, delta_write, erase, gate, key, log_decay, query, query_feedback, read, value
from archsearch.errors import HoleError, SpaceError
from archsearch.holes import integer, log_uniform, one_of, optional, uniform
from archsearch.mixers.layer.options import Layer, LowRank, Projection
from archsearch.mixers.layer.partner_options import Latent, Mamba
from archsearch.mixers.models.options import Model
from archsearch.spaces.delta_family import SPACE
from archsearch.spaces.lookup import find_space
from archsearch.spaces.options import Budget, Training
from archsearch.spaces.resolution import at_random, baseline, find_rule, middle, resolve, structures
from archsearch.spaces.space import Point, Space

q, k, v, e = query("q"), key("k"), value("v"), key("e")
beta, gamma, lam = gate("beta"), gate("gamma"), gate("lam")


def small(**changes: object) -> Space:
    rule = Rule("small", optional(erase(e, strength=gamma), name="erase"), delta_write(k, v, strength=beta), read(q))
    options: dict[str, object] = {
        "rule": rule,
        "model": Model(width=32, heads=1, layers=1),
        "layer": Layer(conv=one_of(0, 4), operands={"e": LowRank(rank=one_of(4, 8))}),
        "training": Training(learning_rate=log_uniform(1e-3, 1e-2)),
    }
    return Space(**{**options, **changes})  # type: ignore[arg-type]


def test_paths_name_the_part_the_field_and_the_branch() -> None:
    assert list(small().holes) == ["rule/erase", "layer/conv", "layer/operands/e/rank", "training/learning_rate"]
    assert list(SPACE.holes) == [
        "rule/decay",
        "rule/erase",
        "rule/residual",
        "rule/residual=fixed/lam",
        "training/learning_rate",
    ]


def test_a_hole_of_an_operand_exists_only_where_the_rule_uses_it() -> None:
    common = {"layer/conv": "4", "training/learning_rate": 2e-3}
    without = resolve(small(), {"rule/erase": "no", **common})
    assert list(without.choices) == ["rule/erase", "layer/conv", "training/learning_rate"]
    assert dict(without.layer.operands) == {}
    within = resolve(small(), {"rule/erase": "yes", "layer/operands/e/rank": "8", **common})
    assert dict(within.layer.operands) == {"e": LowRank(rank=8)} and within.layer.conv == 4


def test_open_unknown_and_wrong_choices_are_refused() -> None:
    with pytest.raises(HoleError, match="'rule/erase' is open"):
        resolve(small(), {})
    with pytest.raises(HoleError, match="no hole is called 'rule/erasure'; the holes are 'rule/erase', 'layer/conv'"):
        resolve(small(), {"rule/erasure": "no"})
    with pytest.raises(HoleError, match="rule/erase"):
        resolve(small(), {"rule/erase": "maybe"})


@pytest.mark.parametrize("space", [small(), SPACE], ids=["small", "delta_family"])
def test_points_replay_from_their_choices(space: Space) -> None:
    source = random.Random(0)
    for _ in range(40):
        point = space.resolve(at_random(source))
        again = resolve(space, point.choices)
        assert again == point and again.variant_hash == point.variant_hash
        assert not any(holes.has_holes(part) for part in (point.rule, point.layer, point.model, point.training))


def test_structures_go_through_every_branch_once() -> None:
    found = list(structures(SPACE.resolve))
    assert len(found) == 36
    assert len({point.variant_hash for _, point in found}) == 36
    assert len({str(choices) for choices, _ in structures(small().resolve)}) == 2 * (1 + 2)


def test_numbers_in_a_structure_are_the_middle_of_their_range() -> None:
    assert middle(log_uniform(1e-4, 1e-2)) == pytest.approx(1e-3)
    assert middle(uniform(1.0, 2.0)) == 1.5
    assert middle(one_of(a=1, b=2)) == "a"
    space = small(layer=Layer(), model=Model(width=32, heads=1, layers=integer(1, 3)))
    assert [choices["model/layers"] for choices, _ in structures(space.resolve)][:3] == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("delta_net", ("none", "none", "none")),
        ("gated_delta_net", ("scalar", "none", "none")),
        ("kda", ("channel", "none", "none")),
        ("q_delta", ("scalar", "none", "learned")),
        ("eda", ("channel", "learned", "none")),
        ("eda_scalar", ("scalar", "learned", "none")),
        ("eda_q_delta", ("scalar", "learned", "learned")),
    ],
)
def test_a_named_rule_is_found_by_its_structure(name: str, choices: tuple[str, ...]) -> None:
    found = baseline(SPACE, name, archsearch.rules[name])
    assert tuple(found[f"rule/{hole}"] for hole in ("decay", "erase", "residual")) == choices
    assert resolve(SPACE, found).rule.hash == archsearch.rules[name].hash


def test_a_baseline_outside_the_space_is_refused() -> None:
    assert find_rule(SPACE, archsearch.rules["gla"]) is None
    with pytest.raises(SpaceError) as error:
        baseline(SPACE, "gla", archsearch.rules["gla"])
    assert str(error.value) == (
        "a baseline must be a point of the space; no choice of its holes makes gla: "
        "widen the space or leave gla out of baselines"
    )


def test_one_rule_with_two_sources_is_two_variants() -> None:
    common = {"rule/decay": "none", "rule/residual": "none", "training/learning_rate": 2e-3}
    learned = resolve(SPACE, {"rule/erase": "learned", **common})
    projected = resolve(SPACE, {"rule/erase": "projected", **common})
    assert learned.rule.hash == projected.rule.hash
    assert learned.variant_hash != projected.variant_hash
    assert dict(projected.layer.operands) == {"p": Projection(of="q")}


def _variant(point: Point, **changes: object) -> str:
    return replace(point, **changes).variant_hash  # type: ignore[arg-type]


def test_a_variant_is_rule_layer_model_and_training_to_six_digits() -> None:
    point = SPACE.resolve(at_random(random.Random(3)))
    rate = float(point.training.learning_rate)
    assert _variant(point, choices={}) == point.variant_hash
    assert _variant(point, rule=Rule("renamed", *point.rule.steps)) == point.variant_hash
    assert _variant(point, training=replace(point.training, learning_rate=rate * (1 + 1e-9))) == point.variant_hash
    assert _variant(point, training=replace(point.training, learning_rate=rate * 1.001)) != point.variant_hash
    assert _variant(point, layer=replace(point.layer, conv=2)) != point.variant_hash
    model = point.model
    assert _variant(point, layer=replace(point.layer, head_dim=model.width // model.heads)) == point.variant_hash
    assert _variant(point, model=replace(model, pattern=("rule", "rule"))) == point.variant_hash
    assert _variant(point, model=replace(model, mlp_ratio=model.mlp_width / model.width)) == point.variant_hash
    assert _variant(point, model=replace(point.model, width=96)) != point.variant_hash


def test_the_hash_of_a_space_is_that_of_its_text() -> None:
    assert small().hash == small().hash
    assert small().hash != small(training=Training(learning_rate=log_uniform(1e-3, 2e-2))).hash
    assert small().hash != small(budget=Budget(tokens=5)).hash
    assert "log_uniform(0.001, 0.01)" in str(small()) and "LowRank(rank=one_of(" in str(small())


def test_a_hole_in_the_budget_is_refused() -> None:
    with pytest.raises(SpaceError) as error:
        small(budget=Budget(tokens=integer(1, 5)))
    assert str(error.value) == "no hole may stand where the budget is fixed; got budget/tokens: give it one value"
    with pytest.raises(SpaceError, match="got training/batch_tokens"):
        small(training=Training(batch_tokens=one_of(128, 256)))


def test_a_source_of_an_operand_that_no_choice_uses_is_refused() -> None:
    with pytest.raises(SpaceError) as error:
        small(layer=Layer(operands={"p": LowRank(4)}))
    assert str(error.value) == (
        "layer.operands names operands of the rule (e, gamma, k, v, beta, q); got 'p', "
        "which no choice of its holes uses: rename or remove it"
    )


def test_ready_spaces_are_found_by_name_and_files_by_path(tmp_path: object) -> None:
    assert find_space("delta_family") is SPACE
    with pytest.raises(SpaceError) as error:
        find_space("delta_famly")
    assert str(error.value).startswith("unknown space 'delta_famly'; did you mean delta_family? Ready spaces: ")


def test_one_hole_used_twice_is_one_choice() -> None:
    share = uniform(0.0, 1.0, name="share")
    rule = Rule(
        "twice",
        decay(log_decay("g")),
        delta_write(k, v, strength=beta, residual=query_feedback(q, share)),
        delta_write(key("k2"), value("v2"), strength=gate("b2"), residual=query_feedback(q, share)),
        read(q),
    )
    point = small(rule=rule, layer=Layer()).resolve(at_random(random.Random(1)))
    drawn = [path for path in point.choices if path.startswith("rule/")]
    assert len(drawn) == 1


def test_pattern_and_sizes_of_its_layers_may_be_holes() -> None:
    patterns = one_of(pure=("rule",), hybrid=("rule", "mla"), local=("rule", "window"))
    model = Model(32, 2, 2, patterns, window=integer(4, 8), latent=Latent(rank=one_of(4, 8)), mamba=Mamba(state=4))
    space = small(model=model)
    assert {"model/pattern", "model/window", "model/latent/rank"} <= set(space.holes)
    choices = {"rule/erase": "no", "layer/conv": "4", "training/learning_rate": 2e-3, "model/window": 6}
    found = resolve(space, {**choices, "model/pattern": "hybrid", "model/latent/rank": "8"})
    assert found.model.entries == ("rule", "mla") and found.model.latent.sizes(32, 2).rank == 8
    assert "model/window" not in found.choices and found.model.window == Model().window
    local = resolve(space, {**choices, "model/pattern": "local"})
    assert local.model.window == 6 and "model/latent/rank" not in local.choices


def test_what_is_neither_a_rule_nor_a_space_is_refused() -> None:
    with pytest.raises(
        SpaceError, match=r"resolve takes a Rule or a Space; got 'gla'\. A rule of the zoo is rules\[name\]"
    ):
        archsearch.resolve("gla", {})  # pyright: ignore[reportArgumentType, reportCallIssue]
