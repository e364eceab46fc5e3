"""A hole wherever a value may stand: in a rule, a source, the model, the training; each changes the point."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from archsearch.dsl import (
    Rule,
    bonus,
    decay,
    delta_write,
    erase,
    gate,
    key,
    log_decay,
    query,
    query_feedback,
    read,
    simultaneous,
    value,
    write,
)
from archsearch.errors import SpaceError
from archsearch.holes import Choose, Chosen, Hole, OneOf, integer, log_uniform, one_of, optional, uniform
from archsearch.mixers.layer.options import (
    BoundedDecay,
    Layer,
    Linear,
    LogSigmoid,
    LowRank,
    MambaDecay,
    Sigmoid,
    Vector,
)
from archsearch.mixers.layer.partner_options import Griffin, Latent, Mamba
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.spaces.options import Schedule, Training
from archsearch.spaces.resolution import resolve, structures
from archsearch.spaces.space import Point, Space

q, k, v, e = query("q"), key("k"), value("v"), key("e")
g, beta, gamma, lam = log_decay("g"), gate("beta"), gate("gamma"), gate("lam")
WRITE, ERASE = delta_write(k, v, strength=beta), erase(e, strength=gamma)
PLAIN = Rule("plain", decay(g), WRITE, read(q))
MODEL = Model(width=16, heads=2, layers=2, mlp_ratio=1.0)
SPACE = Space(PLAIN, MODEL)


def rule(*steps: Any) -> dict[str, Any]:
    return {"rule": Rule("made", *steps)}


IN_A_RULE: dict[str, tuple[str, dict[str, Any]]] = {
    "a step": ("rule/erase", rule(optional(ERASE, name="erase"), WRITE, read(q))),
    "several steps": (
        "rule/order",
        rule(
            one_of(before=(ERASE, WRITE), after=(WRITE, ERASE), joint=simultaneous(ERASE, WRITE), name="order"), read(q)
        ),
    ),
    "a member": (
        "rule/member",
        rule(simultaneous(WRITE, one_of(e=ERASE, q=erase(q, strength=gamma), name="member")), read(q)),
    ),
    "an address": ("rule/address", rule(erase(one_of(e, q), strength=gamma), WRITE, read(q))),
    "a target": ("rule/target", rule(delta_write(k, one_of(whole=v, half=0.5 * v), strength=beta), read(q))),
    "a strength": ("rule/strength", rule(delta_write(k, v, strength=one_of(one=1.0, gate=beta)), read(q))),
    "a number": ("rule/strength", rule(delta_write(k, v, strength=uniform(0.1, 0.9)), read(q))),
    "a residual": (
        "rule/residual",
        rule(delta_write(k, v, residual=one_of(none=None, q=query_feedback(q, lam))), read(q)),
    ),
    "a share": ("rule/residual/lam", rule(delta_write(k, v, residual=query_feedback(q, uniform(0.0, 1.0))), read(q))),
    "which state": ("rule/reads", rule(decay(g), delta_write(k, v, reads=one_of(None, "previous")), read(q))),
    "a kind": ("rule/log_decay", rule(decay(one_of(head=g, channel=log_decay("g", per="channel"))), WRITE, read(q))),
    "a fixed decay": ("rule/log_decay", rule(decay(uniform(-1.0, -0.1)), WRITE, read(q))),
    "a kind of write": ("rule/write", rule(one_of(delta=WRITE, plain=write(k, v), name="write"), read(q))),
    "a bonus": ("rule/bonus", rule(WRITE, read(q, bonus=one_of(none=None, u=bonus(key("u"), k, v))))),
    "a scale": ("rule/scale", rule(WRITE, read(q, scale=one_of(None, 1.0)))),
    "a normaliser": ("rule/normaliser", rule(WRITE, read(q, normaliser=one_of(None, 1.0)))),
    "a whole rule": ("rule/rule", {"rule": one_of(plain=PLAIN, delta=Rule("delta", WRITE, read(q)))}),
}


def layer(**fields: Any) -> dict[str, Any]:
    return {"layer": Layer(**fields)}


IN_A_LAYER: dict[str, tuple[str, dict[str, Any]]] = {
    "head size": ("layer/head_dim", layer(head_dim=one_of(4, 8))),
    "V / K": ("layer/expand_v", layer(expand_v=one_of(1.0, 2.0))),
    "value heads": ("layer/value_heads", layer(value_heads=one_of(2, 4))),
    "convolution": ("layer/conv", layer(conv=integer(0, 4, 2))),
    "output gate": ("layer/output_gate", layer(output_gate=one_of("swish", "none"))),
    "output norm": ("layer/output_norm", layer(output_norm=one_of("rms", "group"))),
    "its projection": ("layer/gate_projection", layer(gate_projection=one_of(full=Linear(), low=LowRank(4)))),
    "a source": ("layer/operands/g", layer(operands={"g": one_of(mamba=MambaDecay(), gla=LogSigmoid())})),
    "of a source": ("layer/operands/g/bound", layer(operands={"g": BoundedDecay(bound=uniform(-8.0, -1.0))})),
    "a norm": ("layer/operands/k/norm", layer(operands={"k": Vector(norm=one_of("l2", "rms"))})),
    "a rank": ("layer/operands/k/rank", layer(operands={"k": LowRank(rank=one_of(2, 4))})),
    "a gate's scale": ("layer/operands/beta/scale", layer(operands={"beta": Sigmoid(scale=one_of(1.0, 2.0))})),
}


def model(**fields: Any) -> dict[str, Any]:
    return {"model": replace(MODEL, **fields)}


IN_A_MODEL: dict[str, tuple[str, dict[str, Any]]] = {
    "width": ("model/width", model(width=one_of(16, 32))),
    "heads": ("model/heads", model(heads=one_of(1, 2))),
    "depth": ("model/layers", model(layers=integer(1, 3))),
    "pattern": ("model/pattern", model(pattern=one_of(pure=("rule",), hybrid=("rule", "attention")))),
    "a place": ("model/pattern/second", model(pattern=("rule", one_of("attention", "conv", name="second")))),
    "MLP": ("model/mlp_ratio", model(mlp_ratio=one_of(0.0, 2.0))),
    "window": ("model/window", model(pattern=("rule", "window"), window=one_of(4, 8))),
    "latent": ("model/latent/rank", model(pattern=("rule", "mla"), latent=Latent(rank=one_of(4, 8)))),
    "scan": ("model/mamba/state", model(pattern=("rule", "mamba"), mamba=Mamba(state=one_of(4, 8)))),
    "recurrence": ("model/griffin/conv", model(pattern=("rule", "griffin"), griffin=Griffin(conv=one_of(2, 4)))),
    "embeddings": ("model/tie_embeddings", model(tie_embeddings=one_of(tied=True, untied=False))),
}


def training(**fields: Any) -> dict[str, Any]:
    return {"training": Training(**fields)}


IN_TRAINING: dict[str, tuple[str, dict[str, Any]]] = {
    "rate": ("training/learning_rate", training(learning_rate=log_uniform(1e-4, 1e-2))),
    "weight decay": ("training/weight_decay", training(weight_decay=one_of(0.0, 0.1))),
    "schedule": ("training/schedule", training(schedule=one_of(wsd=Schedule.WSD, cosine=Schedule.COSINE))),
    "warm-up": ("training/warmup", training(warmup=uniform(0.0, 0.2))),
    "clipping": ("training/clip", training(clip=one_of(0.0, 1.0))),
}
PLACES = {**IN_A_RULE, **IN_A_LAYER, **IN_A_MODEL, **IN_TRAINING}


def end_of(last: bool) -> Choose:
    """The first choice of every hole, or its last."""

    def choose(path: str, hole: Hole) -> Chosen:
        if isinstance(hole, OneOf):
            return hole.labels[-1 if last else 0]
        return hole.high if last else hole.low

    return choose


def built(point: Point) -> LanguageModel:
    with torch.device("meta"):
        return LanguageModel(point.rule, point.model, point.layer, 8)


@pytest.mark.parametrize(("path", "parts"), PLACES.values(), ids=PLACES)
def test_a_hole_anywhere_has_its_path_and_makes_different_points(path: str, parts: dict[str, Any]) -> None:
    space = replace(SPACE, **parts)
    assert path in space.holes
    first, last = space.resolve(end_of(last=False)), space.resolve(end_of(last=True))
    assert first.variant_hash != last.variant_hash
    for point in (first, last):
        assert resolve(space, point.choices) == point
        assert built(point).parameter_count > 0


def test_several_steps_are_the_steps_one_after_another() -> None:
    assert Rule("x", (ERASE, WRITE), read(q)) == Rule("x", ERASE, WRITE, read(q))
    point = Space(**rule(one_of(both=(ERASE, WRITE), one=WRITE, name="steps"), read(q)), model=MODEL).resolve(
        end_of(last=False)
    )
    assert point.rule.hash == Rule("y", ERASE, WRITE, read(q)).hash


def test_what_depends_on_another_choice_exists_only_with_it() -> None:
    space = Space(
        PLAIN,
        Model(16, 2, 2, one_of(pure=("rule",), local=("rule", "window")), window=one_of(4, 8)),
        Layer(output_gate=one_of("swish", "none"), gate_projection=one_of(full=Linear(), low=LowRank(4))),
        Training(schedule=one_of(wsd=Schedule.WSD, cosine=Schedule.COSINE), decay=uniform(0.1, 0.5)),
    )
    needs = {
        "model/window": ("model/pattern", "local"),
        "layer/gate_projection": ("layer/output_gate", "swish"),
        "training/decay": ("training/schedule", "wsd"),
    }
    found = list(structures(space.resolve))
    assert len(found) == (1 + 2) * (1 + 2) * 2
    for choices, point in found:
        for path, (on, label) in needs.items():
            assert (path in choices) == (choices[on] == label)
        assert point.choices == choices
    assert len({point.variant_hash for _, point in found}) == len(found)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            model(window=one_of(4, 8)),
            "a hole must change something; got model/window, but no choice of model.pattern has a layer 'window': "
            "give it one value",
        ),
        (
            layer(output_gate="none", gate_projection=one_of(full=Linear(), low=LowRank(4))),
            "a hole must change something; got layer/gate_projection, but layer.output_gate is none: give it one value",
        ),
        (
            training(schedule=Schedule.COSINE, decay=uniform(0.1, 0.5)),
            "a hole must change something; got training/decay, but training.schedule is cosine, which decays all the "
            "time: give it one value",
        ),
        (
            {"rule": one_of(1, 2)},
            "rule must be a Rule, with holes if you like, or one_of(first=..., second=...) of rules; got one_of(1=1",
        ),
        (
            {"rule": one_of(PLAIN, Rule("delta", WRITE, read(q)))},
            "rules to choose from need labels, one_of(first=..., second=...); got 'Rule(",
        ),
    ],
)
def test_a_hole_without_a_meaning_is_refused_in_one_line(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(SpaceError) as error:
        replace(SPACE, **parts)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value) or "Rule(" in message
