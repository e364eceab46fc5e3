"""Spaces in YAML: the same spaces as in Python, and every mistake in one line that says where."""

import random
from pathlib import Path

import pytest

import archsearch
from archsearch.dsl import Rule, decay, delta_write, erase, gate, key, log_decay, query, query_feedback, read, value
from archsearch.errors import ArchsearchError, ConfigError, HoleError, RuleError, SpaceError
from archsearch.holes import integer, log_uniform, one_of, optional, uniform
from archsearch.mixers.layer.options import BoundedDecay, Layer, LowRank, MambaDecay, Projection
from archsearch.mixers.layer.partner_options import Latent
from archsearch.mixers.models.options import Model
from archsearch.spaces.delta_family import SPACE
from archsearch.spaces.lookup import find_space, space_or_none
from archsearch.spaces.options import Budget, Schedule, Training
from archsearch.spaces.plain import read_space
from archsearch.spaces.resolution import at_random
from archsearch.spaces.space import Space

q, k, v, e, p = query("q"), key("k"), value("v"), key("e"), key("p")
g, c = log_decay("g"), log_decay("c", per="channel")
beta, gamma, lam = gate("beta"), gate("gamma"), gate("lam")

TEXT = """
rule:
  name: made
  operands:
    {q: query, k: key, v: value, e: key, beta: gate, gamma: gate, g: log_decay, c: 'log_decay("c", per="channel")'}
  steps:
    - {one_of: {none: null, scalar: decay(g), channel: decay(c)}, name: decay}
    - {optional: "erase(e, strength=gamma)", name: erase}
    - >-
      delta_write(
      k, v, strength=beta,
      residual=one_of(none=None, fixed=query_feedback(q, uniform(0.0, 1.0)), name="residual"))
    - read(q)
layer:
  conv: {one_of: [0, 4]}
  head_dim: {optional: 16}
  output_gate: {one_of: [swish, none], name: gate}
  operands:
    e: {low_rank: {rank: {one_of: [8, 16]}}}
    c: {one_of: {mamba: {mamba_decay: {}}, kda: {bounded_decay: {bound: {uniform: [-8, -1]}}}}}
model:
  width: 64
  heads: {integer: [1, 4]}
  layers: {integer: [2, 6, 2]}
  pattern: {one_of: {pure: [rule], hybrid: [rule, {one_of: [attention, mla]}]}}
  latent: {rank: {one_of: [8, 16]}}
training:
  learning_rate: {log_uniform: [1e-3, 1e-2]}
  schedule: {one_of: {wsd: wsd, cosine: cosine}}
  warmup: {uniform: [0.0, 0.1]}
budget: {state_bytes: null, parameters: gated_delta_net, tokens: 1_000_000}
"""
WRITE = delta_write(
    k, v, strength=beta, residual=one_of(none=None, fixed=query_feedback(q, uniform(0.0, 1.0)), name="residual")
)
MADE = Space(
    rule=Rule(
        "made",
        one_of(none=None, scalar=decay(g), channel=decay(c), name="decay"),
        optional(erase(e, strength=gamma), name="erase"),
        WRITE,
        read(q),
    ),
    layer=Layer(
        conv=one_of(0, 4),
        head_dim=optional(16),
        output_gate=one_of("swish", "none", name="gate"),
        operands={
            "e": LowRank(rank=one_of(8, 16)),
            "c": one_of(mamba=MambaDecay(), kda=BoundedDecay(bound=uniform(-8, -1))),
        },
    ),
    model=Model(
        width=64,
        heads=integer(1, 4),
        layers=integer(2, 6, 2),
        pattern=one_of(pure=("rule",), hybrid=("rule", one_of("attention", "mla"))),
        latent=Latent(rank=one_of(8, 16)),
    ),
    training=Training(
        learning_rate=log_uniform(1e-3, 1e-2),
        schedule=one_of(wsd=Schedule.WSD, cosine=Schedule.COSINE),
        warmup=uniform(0.0, 0.1),
    ),
    budget=Budget(parameters="gated_delta_net", tokens=1_000_000),
)


def written(text: str, path: Path) -> str:
    path.write_text(text)
    return str(path)


def test_yaml_and_python_make_the_same_space(tmp_path: Path) -> None:
    found = find_space(written(TEXT, tmp_path / "space.yaml"))
    assert found == MADE and found.hash == MADE.hash and list(found.holes) == list(MADE.holes)
    for seed in range(5):
        one, other = (space.resolve(at_random(random.Random(seed))) for space in (found, MADE))
        assert one == other


def test_a_rule_is_a_name_a_text_or_a_file(tmp_path: Path) -> None:
    model = {"width": 32, "heads": 1}
    named = read_space({"rule": "q_delta", "model": model}, "here")
    assert named.rule == archsearch.rules["q_delta"]
    assert read_space({"rule": str(SPACE.rule), "model": model}, "here").rule == SPACE.rule
    file = written(f"from archsearch import *\nRULE = {SPACE.rule}\n", tmp_path / "mine.py")
    assert read_space({"rule": file, "model": model}, "here").rule == SPACE.rule
    several = read_space({"rule": {"one_of": ["kda", file]}}, "here")
    assert several.holes["rule/rule"].labels == ("kda", "mine")  # type: ignore[union-attr]


def test_a_source_that_the_space_needs_is_named_by_its_class() -> None:
    found = read_space({"rule": str(SPACE.rule), "layer": {"operands": {"p": {"projection": {"of": "q"}}}}}, "here")
    assert found.layer == Layer(operands={"p": Projection(of="q")})


def bad(**changes: object) -> dict[str, object]:
    return {"rule": "q_delta", **changes}


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (
            bad(model={"heads": {"one_of": []}}),
            ConfigError,
            "model.heads must be one_of: [a, b] or one_of: {fi",
        ),
        (
            bad(training={"warmup": {"uniform": [0.5, 0.1]}}),
            HoleError,
            "training.warmup: uniform needs finite low < high; got low=0.5, high=0.1 (in here)",
        ),
        (
            bad(training={"warmup": {"log_uniform": [0.0, 0.1]}}),
            HoleError,
            "training.warmup: log_uniform needs a positive range; got low=0.0. Use uniform, or a low above 0 (in here)",
        ),
        (
            bad(model={"heads": {"integer": [4, 2]}}),
            HoleError,
            "model.heads: integer needs finite low < high; got low=4, high=2 (in here)",
        ),
        (
            bad(model={"heads": {"uniform": [1, 4]}}),
            ConfigError,
            "model.heads.uniform must be an integer; got 2.5 in here",
        ),
        (
            bad(model={"heads": {"integer": [1]}}),
            ConfigError,
            "model.heads must be integer: [low, high] or [low, high, step]; got [1] in here",
        ),
        (
            bad(model={"heads": {"one_of": [1, "two"]}}),
            ConfigError,
            "model.heads.one_of[1] must be an integer; got 'two' in here",
        ),
        (
            bad(model={"heads": {"one_of": [1], "default": 1}}),
            ConfigError,
            "model.heads must be one hole, {one_of: ...} with a name if you like; got 'default' beside one_of in here",
        ),
        (
            bad(model={"pattern": {"one_of": [["rule"], ["rule", "mla"]]}}),
            ConfigError,
            "model.pattern has options that are lists or mappings; label them: one_of: {first: ..., second: ...}",
        ),
        (
            bad(model={"heads": {"one_of": {"name": 1}}}),
            ConfigError,
            "model.heads must not label an option name, which is the hole's own in here",
        ),
        (bad(modle={}), ConfigError, "unknown key modle in here; did you mean model?"),
        ({"model": {}}, ConfigError, "rule is missing in here"),
        (bad(rule="q_dleta"), RuleError, "unknown rule 'q_dleta'; did you mean q_delta?"),
        (
            bad(rule={"steps": ["read(q)"], "step": 1}),
            ConfigError,
            "rule must be a mapping of name, operands, steps, or of one_of; got 'step' in here",
        ),
        (
            bad(rule={"operands": {"q": "query"}, "steps": ["read(w)"]}),
            RuleError,
            "rule.steps[0] in here: a rule's text holds calls of the language, numbers and arithmetic; got 'w'",
        ),
        (
            bad(rule={"operands": {"q": "quary"}, "steps": ["read(q)"]}),
            ConfigError,
            "rule.operands.q must be one of query, key, value, gate, channel_gate, log_decay, or such a call; ",
        ),
        (bad(rule={"one_of": []}), ConfigError, "rule.one_of must be a list of one or more; got [] in here"),
        (
            bad(budget={"tokens": {"integer": [1, 5]}}),
            SpaceError,
            "no hole may stand where the budget is fixed; got budget/tokens: give it one value (in here)",
        ),
        (
            bad(training={"batch_tokens": {"one_of": [128, 256]}}),
            SpaceError,
            "no hole may stand where the budget is fixed; got training/batch_tokens: give it one value (in here)",
        ),
        (
            bad(layer={"operands": {"e": {"low_rank": {"rank": {"one_of": [4, 8]}}}}}),
            SpaceError,
            "layer.operands names operands of the rule (g, k, v, beta, q, lam); got 'e'",
        ),
        (
            bad(model={"latent": {"rank": {"one_of": [4, 8]}}}),
            SpaceError,
            "a hole must change something; got model/latent, but no choice of model.pattern has a layer 'mla'",
        ),
    ],
)
def test_a_bad_space_is_refused_in_one_line(data: object, kind: type[ArchsearchError], message: str) -> None:
    with pytest.raises(kind) as error:
        read_space(data, "here")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_no_space_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match=r"no\.yaml cannot be read as YAML: No such file"):
        find_space(str(tmp_path / "no.yaml"))
    with pytest.raises(SpaceError, match=r"torn\.yaml cannot be read as YAML: "):
        find_space(written("rule: [", tmp_path / "torn.yaml"))
    with pytest.raises(ConfigError, match="the whole must be a mapping"):
        find_space(written("- 1", tmp_path / "list.yaml"))


def test_a_ready_space_that_is_spelled_with_a_hyphen_is_told_its_name() -> None:
    with pytest.raises(SpaceError, match="unknown space 'delta-family'; did you mean delta_family"):
        space_or_none("delta-family")


@pytest.mark.parametrize(("name", "asked"), [("RULE", ""), ("FAMILY", ":FAMILY")])
def test_a_rule_in_the_place_of_a_space_is_told_how_it_becomes_one(tmp_path: Path, name: str, asked: str) -> None:
    given = written(f"from archsearch import *\n{name} = {SPACE.rule}\n", tmp_path / "family.py") + asked
    with pytest.raises(SpaceError) as error:
        find_space(given)
    assert str(error.value) == f"{given} is a rule; a space of it is a mapping: {{rule: {given}}}"
    assert find_space({"rule": given}).rule.holes == SPACE.rule.holes


def test_show_tells_a_space_from_a_rule(tmp_path: Path) -> None:
    assert space_or_none("delta_family") is SPACE
    assert space_or_none("q_delta") is None
    rule = f"from archsearch import *\nRULE = {SPACE.rule}\n"
    both = written(rule + "SPACE = Space(rule=RULE, model=Model())\n", tmp_path / "both.py")
    alone = written("from archsearch.spaces.delta_family import SPACE\n", tmp_path / "alone.py")
    assert space_or_none(both) is None
    assert isinstance(space_or_none(f"{both}:SPACE"), Space)
    assert space_or_none(alone) == SPACE
    assert isinstance(space_or_none(written(TEXT, tmp_path / "space.yml")), Space)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            {"one_of": ["my rule.py", "kda"]},
            "a label must be a word of letters, digits and _; got 'my rule' of rule.one_of in here; "
            "write one_of: {my_rule: my rule.py}",
        ),
        (
            {"one_of": ["mine.py:FIRST", "mine.py:SECOND"]},
            "options need different labels; got 'mine' twice of rule.one_of in here; "
            "write one_of: {first: ..., second: ...}",
        ),
        (
            {"one_of": ["kda"], "nam": "x"},
            "rule must be one_of with a name if you like; got 'nam' beside it in here",
        ),
    ],
)
def test_labels_of_rules_are_told_in_the_words_of_yaml(rule: object, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_space({"rule": rule}, "here")
    assert str(error.value) == message
