"""One hash for every spelling of a rule, and never one for two functions."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archsearch.dsl import (
    Operand,
    Rule,
    bonus,
    channel_gate,
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
from archsearch.dsl.expressions import Product, Sum
from archsearch.dsl.primitives import Decay, DeltaWrite, Erase, Simultaneous, Write
from archsearch.kernels.conformance import Difficulty, Inputs, Shape, draw
from archsearch.kernels.conformance.limits import substituted
from archsearch.kernels.conformance.made_up import RULES
from archsearch.kernels.conformance.random_rules import random_rule
from archsearch.kernels.conformance.setting import Outcome, forward, relative_error
from archsearch.kernels.dispatch import compile
from archsearch.lowering import canonical_text, lower
from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.zoo import rules

q, p, k, k2, e = query("q"), query("p"), key("k"), key("k2"), key("e")
v, v2 = value("v"), value("v2")
beta, gamma, lam = gate("beta"), gate("gamma"), gate("lam")
b, w = channel_gate("b"), channel_gate("w", of="value")
g, h, gc, gs = log_decay("g"), log_decay("h"), log_decay("gc", per="channel"), log_decay("gs", signed=True)
SHAPE = Shape(batch=1, tokens=6, heads=1, value_heads=2, key_dim=3, value_dim=2)


def renamed(node: Any, names: dict[str, str]) -> Any:
    """The tree with other names for its operands."""
    if isinstance(node, Operand):
        return dataclasses.replace(node, name=names.get(node.name, node.name))
    if isinstance(node, tuple):
        return tuple(renamed(child, names) for child in node)  # pyright: ignore[reportUnknownVariableType]
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = {f.name: renamed(getattr(node, f.name), names) for f in dataclasses.fields(node)}
        return dataclasses.replace(node, **fields)
    return node


def respelled(rule: Rule, seed: int) -> tuple[Rule, dict[str, str]]:
    """The same function written otherwise, and how its operands are called now."""
    chance = Random(seed)
    steps = [_respelled_step(step, chance) for step in rule.steps]
    spelled: list[Any] = []
    for step in steps:
        if chance.random() < 0.2:
            spelled.append(decay(0.0))
        if chance.random() < 0.2:
            spelled.append(delta_write(k, v, strength=0.0))
        spelled += _respelled_decay(step, chance)
    names = [*rule.operands, "k", "v"]
    fresh = [f"x{i}" for i in range(len(names))]
    chance.shuffle(fresh)
    mapping = {name: new for name, new in zip(names, fresh, strict=True) if not name.endswith("_sign")}
    mapping |= {f"{name}_sign": f"{new}_sign" for name, new in mapping.items()}
    return renamed(Rule("respelled", *spelled), mapping), mapping


def _respelled_decay(step: Any, chance: Random) -> list[Any]:
    if isinstance(step, Decay) and isinstance(step.log_decay, float) and chance.random() < 0.5:
        return [decay(0.25 * step.log_decay), decay(0.75 * step.log_decay)]
    return [step]


def _respelled_step(step: Any, chance: Random) -> Any:
    if isinstance(step, Simultaneous):
        members = [_respelled_step(member, chance) for member in step.steps]
        chance.shuffle(members)
        return simultaneous(*members)
    if isinstance(step, Erase):
        return _respelled_erase(step, chance)
    if isinstance(step, Write):
        place = chance.choice(("strength", "address", "target"))
        address, target = _shuffled(step.address, chance), _shuffled(step.target, chance)
        if place == "address":
            return write(step.strength * address, target)
        return (
            write(address, step.strength * target)
            if place == "target"
            else write(address, target, strength=step.strength)
        )
    if isinstance(step, DeltaWrite):
        address, target = _shuffled(step.address, chance), _shuffled(step.target, chance)
        residual = _shuffled(_residual(step), chance)
        if chance.random() < 0.5:
            return delta_write(step.strength * address, target, residual=residual, reads=step.reads)
        return delta_write(address, target, strength=step.strength, residual=residual, reads=step.reads)
    return step


def _respelled_erase(step: Erase, chance: Random) -> Any:
    address = _shuffled(step.address, chance)
    match chance.choice(("erase", "delta", "residual")):
        case "erase":
            return erase(address, strength=step.strength, reads=step.reads)
        case "delta":
            return delta_write(address, 0.0 * v, strength=step.strength, reads=step.reads)
        case _:
            return delta_write(address, 0.0 * v, residual=step.strength * address, reads=step.reads)


def _residual(step: DeltaWrite) -> Any:
    if step.residual is None:
        return step.address
    if hasattr(step.residual, "lam"):
        return step.address + step.residual.lam * step.residual.address
    return step.residual


def _shuffled(expression: Any, chance: Random) -> Any:
    """Terms and factors in another order, a term of zero and a doubled half among them."""
    if isinstance(expression, Sum):
        terms = [_shuffled(term, chance) for term in expression.terms]
        chance.shuffle(terms)
        return Sum(tuple(terms))
    if isinstance(expression, Product):
        factors = list(expression.factors)
        chance.shuffle(factors)
        return Product(tuple(factors))
    draw_ = chance.random()
    if draw_ < 0.2:
        return 0.5 * expression + expression * 0.5
    return expression - 0.0 * expression if draw_ < 0.4 else expression


def run(rule: Rule, inputs: Inputs) -> Outcome:
    return forward(compile(rule, "reference"), inputs)


def drawn(rule: Rule) -> Inputs:
    return draw(lower(rule), SHAPE, seed=1, difficulty=Difficulty.EASY)


@given(seed=st.integers(0, 10**9))
def test_two_spellings_have_one_hash_and_one_value(seed: int) -> None:
    rule = random_rule(seed)
    other, names = respelled(rule, seed + 1)
    assert other.hash == rule.hash, f"{rule}\n{other}"
    inputs = drawn(rule)
    own = {names.get(name, name): tensor for name, tensor in inputs.tensors.items()}
    extra = {name: x for name, x in drawn(other).tensors.items() if name not in own}
    taken = {name: {**own, **extra}[name] for name in other.operands}
    expected, found = run(rule, inputs), run(other, dataclasses.replace(inputs, tensors=taken))
    assert relative_error(found.output, expected.output) < 1e-12
    assert relative_error(found.state, expected.state) < 1e-12


@given(seed=st.integers(0, 10**9))
def test_different_functions_have_different_hashes(seed: int) -> None:
    """One thing is changed; where the values move, so must the hash, and where the hash stays, so must the values."""
    rule = random_rule(seed)
    other = changed(rule, Random(seed))
    if list(other.operands) != list(rule.operands):
        return
    inputs = drawn(rule)
    expected, found = run(rule, inputs), run(other, inputs)
    same = relative_error(found.output, expected.output) < 1e-9 and relative_error(found.state, expected.state) < 1e-9
    if other.hash == rule.hash:
        assert same, f"{rule}\n{other}"


def changed(rule: Rule, chance: Random) -> Rule:
    """The rule with two neighbouring steps swapped, a number halved, or a mark of the state taken away."""
    steps = list(rule.steps)
    place = chance.randrange(len(steps) - 1)
    match chance.choice(("swap", "strength", "reads")):
        case "swap":
            steps[place], steps[place + 1] = steps[place + 1], steps[place]
        case "strength":
            steps = [
                dataclasses.replace(s, strength=0.5 * s.strength) if isinstance(s, Erase | Write) else s for s in steps
            ]
        case _:
            steps = [dataclasses.replace(s, reads=None) if isinstance(s, Erase | DeltaWrite) else s for s in steps]
    return Rule("changed", *steps)


def test_rules_that_share_a_hash_share_their_values() -> None:
    """Every pair among named and random rules: operands are matched as the canonical form renames them."""
    by_hash: dict[str, list[Rule]] = {}
    for rule in [*rules.values(), *RULES, *(random_rule(seed) for seed in range(300))]:
        by_hash.setdefault(rule.hash, []).append(rule)
    shared = [group for group in by_hash.values() if len(group) > 1]
    assert [[rule.name for rule in group] for group in shared] == [
        ["retnet", "simple_gla", "nothing_written"],
        ["gla", "hgrn2"],
        ["rwkv6", "bonus"],
        ["gated_delta_net", "kaczmarz", "implicit", "exact_ode"],
        ["ckda", "signed_per_channel"],
    ]


D = delta_write(k, v, strength=beta)
E = erase(e, strength=gamma)
BOTH = simultaneous(write(k, v), write(e, v2))
SAME = {
    "other names": (Rule("a", decay(g), D, read(q)), Rule("b", decay(h), delta_write(k2, v2, strength=lam), read(p))),
    "a key for a query": (Rule("a", write(k, v), read(q)), Rule("b", write(q, v), read(k))),
    "strength on the address": (Rule("a", write(k, v, strength=beta), read(q)), Rule("b", write(beta * k, v), read(q))),
    "strength on the target": (Rule("a", write(k, v, strength=beta), read(q)), Rule("b", write(k, beta * v), read(q))),
    "a sum in the other order": (Rule("a", write(k + 2 * e, v), read(q)), Rule("b", write(2.0 * e + k, v), read(q))),
    "feedback written out": (
        Rule("a", delta_write(k, v, residual=query_feedback(q, lam)), read(q)),
        Rule("b", delta_write(k, v, residual=k + lam * q), read(q)),
    ),
    "an erase as a delta write": (
        Rule("a", E, D, read(q)),
        Rule("b", delta_write(e, 0.0 * v, strength=gamma), D, read(q)),
    ),
    "a write of strength zero": (Rule("a", D, read(q)), Rule("b", erase(e, strength=0.0), D, read(q))),
    "a write in two halves": (
        Rule("a", write(0.5 * k, v), write(k, 0.5 * v), read(q)),
        Rule("b", write(-k, -v), read(q)),
    ),
    "a delta write and the opposite of its target": (
        Rule("a", delta_write(k, v, strength=beta), write(k, -v, strength=beta), read(q)),
        Rule("b", erase(k, strength=beta), read(q)),
    ),
    "two steps at once at one address": (
        Rule("a", simultaneous(erase(k, strength=beta), delta_write(k, v, residual=lam * e)), read(q)),
        Rule("b", delta_write(k, v, residual=lam * e + beta * k), read(q)),
    ),
    "steps at one address that read two states": (
        Rule("a", D, simultaneous(erase(k, reads="previous"), delta_write(k, v)), read(q)),
        Rule("b", D, simultaneous(delta_write(k, v, reads="previous"), erase(k)), read(q)),
    ),
    "a residual of zero": (Rule("a", write(k, v), read(q)), Rule("b", delta_write(k, v, residual=0.0 * k), read(q))),
    "a decay of nothing": (Rule("a", D, read(q)), Rule("b", decay(0.0), D, read(q))),
    "decays side by side": (
        Rule("a", decay(g), decay(gc), decay(-0.5), D, read(q)),
        Rule("b", decay(-0.25), decay(gc), decay(-0.25), decay(g), D, read(q)),
    ),
    "a scalar decay after an erase": (Rule("a", decay(g), E, D, read(q)), Rule("b", E, decay(g), D, read(q))),
    "a signed scalar decay after an erase": (Rule("a", decay(gs), E, D, read(q)), Rule("b", E, decay(gs), D, read(q))),
    "a scalar decay after an erase and a channel's": (
        Rule("a", decay(g), E, decay(gc), D, read(q)),
        Rule("b", E, decay(gc), decay(g), D, read(q)),
    ),
    "a scalar decay after two erases at once": (
        Rule("a", decay(g), simultaneous(E, erase(k2)), D, read(q)),
        Rule("b", simultaneous(erase(k2), E), decay(g), D, read(q)),
    ),
    "members of a group": (Rule("a", simultaneous(E, D), read(q)), Rule("b", simultaneous(D, E), read(q))),
    "a group with one member that acts": (
        Rule("a", D, read(q)),
        Rule("b", simultaneous(D, erase(e, strength=0.0)), read(q)),
    ),
    "plain writes one after another": (
        Rule("a", write(k, v), write(k2, v2), read(q)),
        Rule("b", simultaneous(write(k2, v2), write(k, v)), read(q)),
    ),
    "a plain write after a delta write": (
        Rule("a", D, write(k2, v2), read(q)),
        Rule("b", simultaneous(write(k2, v2), D), read(q)),
    ),
    "the state before the token where nothing came before": (
        Rule("a", delta_write(k, v, reads="previous"), decay(g), read(q)),
        Rule("b", delta_write(k, v), decay(g), read(q)),
    ),
    "the two sides of a bonus": (
        Rule("a", read(q, bonus=bonus(e, k, v)), write(k, v)),
        Rule("b", read(q, bonus=bonus(k, e, v)), write(k, v)),
    ),
    "twins named in another order": (
        Rule("a", simultaneous(write(k, v), write(e, v2)), delta_write(k, v2), delta_write(e, v), read(q)),
        Rule("b", simultaneous(write(e, v2), write(k, v)), delta_write(k, v2), delta_write(e, v), read(q)),
    ),
    "twins whose uses cross": (
        Rule(
            "a", simultaneous(write(k, v), write(e, v2)), simultaneous(delta_write(k, v2), delta_write(e, v)), read(q)
        ),
        Rule(
            "b", simultaneous(write(k, v), write(e, v2)), simultaneous(delta_write(e, v), delta_write(k, v2)), read(q)
        ),
    ),
    "one delta product is a delta net": (delta_product(1, gated=False), rules["delta_net"]),
    "one gated delta product is a gated delta net": (delta_product(1, gated=True), rules["gated_delta_net"]),
    "lam of 0 is a gated delta net": (substituted(rules["q_delta"], "lam", 0.0), rules["gated_delta_net"]),
    "gamma of 0 is kda": (substituted(rules["eda"], "gamma", 0.0), rules["kda"]),
    "gamma of 0 is a gated delta net": (substituted(rules["eda_scalar"], "gamma", 0.0), rules["gated_delta_net"]),
    "gamma of 0 is q_delta": (substituted(rules["eda_q_delta"], "gamma", 0.0), rules["q_delta"]),
    "no decay is a delta net": (substituted(rules["gated_delta_net"], "g", 0.0), rules["delta_net"]),
    "no decay is linear attention": (substituted(rules["simple_gla"], "g", 0.0), rules["linear"]),
    "gamma of 0 is kda, at once too": (substituted(rules["eda_joint"], "gamma", 0.0), rules["kda"]),
    "lam of 0 per channel is kda": (
        Rule("a", decay(gc), delta_write(k, v, strength=beta, residual=query_feedback(q, 0.0)), read(q)),
        rules["kda"],
    ),
    "gamma of 0 per channel is q_delta per channel": (
        Rule("a", decay(gc), erase(e, strength=0.0), delta_write(k, v, residual=query_feedback(q, lam)), read(q)),
        Rule("b", decay(gc), delta_write(k, v, residual=k + lam * q), read(q)),
    ),
    "no decay per channel is a delta net": (substituted(rules["kda"], "g", 0.0), rules["delta_net"]),
    "no decay and no sign is a delta net": (substituted(rules["ckda"], "g", 0.0), rules["delta_net"]),
    "no decay of many writes is a delta product": (
        substituted(rules["gated_delta_product3"], "g", 0.0),
        rules["delta_product3"],
    ),
    "equal gates of gdn2 are kda": (
        substituted(substituted(rules["gdn2"], "b", beta), "w", beta),
        rules["kda"],
    ),
    "lam of 0 is gdn2": (substituted(rules["qed"], "lam", 0.0), rules["gdn2"]),
    "q_delta that asks for its key is gdn2 with scalar gates": (
        substituted(rules["q_delta"], "q", k),
        Rule("b", decay(g), delta_write(k, beta * v, residual=beta * k + beta * lam * k), read(k)),
    ),
    "a preconditioner of 1 is a gated delta net": (
        substituted(rules["precond_gdn"], "m", 1.0),
        rules["gated_delta_net"],
    ),
    "a preconditioner of 1 is kda": (substituted(rules["precond_kda"], "m", 1.0), rules["kda"]),
    "no decay leaves the identity and a low rank": (substituted(rules["dplr"], "g", 0.0), rules["iplr"]),
    "comba at its key without a correction is a shifted rule": (
        substituted(substituted(rules["comba"], "p", k), "d", 0.0),
        rules["shifted"],
    ),
    "no decay forgets which state was read": (
        substituted(rules["shifted"], "g", 0.0),
        rules["delta_net"],
    ),
    "nothing of the token before is mamba2": (substituted(rules["mamba3"], "lam", 1.0), rules["mamba2"]),
    "rwkv7 is a diagonal and a low rank": (
        Rule("a", *substituted(rules["rwkv7"], "m", 0.0).steps[:-1], read(q)),
        Rule(
            "b",
            decay(gc),
            simultaneous(delta_write(b * e, 0.0 * v, residual=e, reads="previous"), write(k, v)),
            read(q),
        ),
    ),
    "no step size is a simple gla": (
        Rule("a", *substituted(rules["mamba2"], "dt", 1.0).steps[:-1], read(q)),
        rules["simple_gla"],
    ),
    "no targets in the first step are an erase": (
        Rule("a", decay(g), delta_write(k2, 0.0 * v2, strength=gamma), D, read(q)),
        rules["eda_scalar"],
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_spellings_of_one_rule(case: str) -> None:
    one, other = SAME[case]
    assert canonical_text(lower(one)) == canonical_text(lower(other))
    assert one.hash == other.hash


DIFFERENT = {
    "erase before and after": (Rule("a", E, D, read(q)), Rule("b", D, E, read(q))),
    "at once and one after another": (Rule("a", simultaneous(E, D), read(q)), Rule("b", E, D, read(q))),
    "a channel decay after an erase": (Rule("a", decay(gc), E, D, read(q)), Rule("b", E, decay(gc), D, read(q))),
    "a decay after a write": (Rule("a", decay(g), D, read(q)), Rule("b", D, decay(g), read(q))),
    "a decay after the read": (Rule("a", D, decay(g), read(q)), Rule("b", D, read(q), decay(g))),
    "a scalar decay after an erase of the state before": (
        Rule("a", decay(g), erase(e, reads="previous"), D, read(q)),
        Rule("b", erase(e, reads="previous"), decay(h), D, read(q)),
    ),
    "read before and after": (Rule("a", read(q), D), Rule("b", D, read(q))),
    "the state before the token": (
        Rule("a", decay(g), D, read(q)),
        Rule("b", decay(g), delta_write(k, v, strength=beta, reads="previous"), read(q)),
    ),
    "one key twice and two keys": (
        Rule("a", write(k, v), erase(k), read(q)),
        Rule("b", write(k, v), erase(k2), read(q)),
    ),
    "the read's address in a write": (Rule("a", write(k, v), read(q)), Rule("b", write(q, v), read(q))),
    "a gate a head and a gate a channel": (
        Rule("a", delta_write(k, v, residual=beta * k), read(q)),
        Rule("b", delta_write(k, v, residual=b * k), read(q)),
    ),
    "a decay a head and a decay a channel": (rules["gated_delta_net"], rules["kda"]),
    "a correction of the read": (rules["comba"], substituted(rules["comba"], "d", 0.0)),
    "a preconditioner of the write and one of the residual": (
        rules["precond_gdn"],
        Rule("b", decay(g), delta_write(k, v, strength=beta, residual=b * k), read(q)),
    ),
    "a decay with a sign": (Rule("a", decay(g), D, read(q)), Rule("b", decay(gs), D, read(q))),
    "one decay twice and two": (
        Rule("a", decay(g), decay(g), D, read(q)),
        Rule("b", decay(g), decay(h), D, read(q)),
    ),
    "a scale": (Rule("a", write(k, v), read(q)), Rule("b", write(k, v), read(q, scale=1.0))),
    "a bonus": (Rule("a", write(k, v), read(q)), Rule("b", write(k, v), read(q, bonus=bonus(k, k, v)))),
    "a coefficient": (Rule("a", write(k, v), read(q)), Rule("b", write(k, 0.5 * v), read(q))),
    "a plain write before and after a delta write": (
        Rule("a", write(k2, v2), D, read(q)),
        Rule("b", D, write(k2, v2), read(q)),
    ),
    "the order of writes and reads of the state": (
        Rule("a", simultaneous(write(k, v), write(e, v2)), delta_write(k, v2), delta_write(e, v), read(q)),
        Rule("b", BOTH, simultaneous(delta_write(k, v2), delta_write(e, v)), read(q)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFERENT)
def test_different_rules(case: str) -> None:
    one, other = DIFFERENT[case]
    assert one.hash != other.hash


def test_the_zoo_has_as_many_hashes_as_functions() -> None:
    """Some papers differ in the layer alone: RetNet fixes the decay of simple GLA, HGRN2 makes GLA's key of its decay,
    and Gated DeltaNet's step has three other forms.
    """
    groups = (("retnet", "simple_gla"), ("gla", "hgrn2"), ("gated_delta_net", "kaczmarz", "implicit", "exact_ode"))
    assert all(len({rules[name].hash for name in group}) == 1 for group in groups)
    assert len({rule.hash for rule in rules.values()}) == len(rules) - 5


def test_many_equal_steps_are_named_in_no_time_and_in_any_order() -> None:
    steps = [write(key(f"k{i}"), value(f"v{i}"), strength=gate(f"b{i}")) for i in range(12)]
    assert Rule("a", *steps, read(q)).hash == Rule("b", *steps[::-1], read(q)).hash
    assert Rule("a", *steps, read(q)).hash != Rule("b", *steps[1:], read(q)).hash


def test_the_canonical_form_names_no_operand() -> None:
    assert canonical_text(lower(rules["linear"])) == (
        "(1*address.head.key0 |  | 1*value.head.value1)\nread 1*address.head.key2 scale default"
    )


def test_gdn2_with_equal_gates_is_kda() -> None:
    inputs = drawn(rules["kda"])
    t = inputs.tensors
    both = {"b": t["beta"][..., None].expand(t["g"].shape), "w": t["beta"][..., None].expand(t["v"].shape)}
    agree(rules["gdn2"], {**without(t, "beta"), **both}, rules["kda"], t, inputs)


def test_kda_with_equal_channels_is_a_gated_delta_net() -> None:
    inputs = drawn(rules["gated_delta_net"])
    t = inputs.tensors
    channels = t["g"][..., None].expand(*t["g"].shape, SHAPE.key_dim)
    agree(rules["kda"], {**t, "g": channels}, rules["gated_delta_net"], t, inputs)


def test_eda_that_erases_at_its_key_is_gdn2_with_scalar_gates() -> None:
    inputs = drawn(rules["eda"])
    t = {**inputs.tensors, "e": inputs.tensors["k"]}
    beta_, gamma_ = t["beta"], t["gamma"]
    erased = (beta_ + gamma_ - beta_ * gamma_)[..., None].expand(t["g"].shape)
    both = {"b": erased, "w": beta_[..., None].expand(t["v"].shape)}
    unit = {**t, "k": torch.nn.functional.normalize(t["k"], dim=-1)}
    agree(
        rules["gdn2"], {**without(unit, "beta", "gamma", "e"), **both}, rules["eda"], {**unit, "e": unit["k"]}, inputs
    )


def test_q_delta_that_asks_for_its_key_is_gdn2_with_scalar_gates() -> None:
    inputs = drawn(rules["q_delta"])
    t = {**inputs.tensors, "q": inputs.tensors["k"]}
    shape = (*t["beta"].shape, SHAPE.key_dim)
    both = {
        "b": (t["beta"] * (1 + t["lam"]))[..., None].expand(shape),
        "w": t["beta"][..., None].expand(t["v"].shape),
        "g": t["g"][..., None].expand(shape),
    }
    agree(rules["gdn2"], {**without(t, "beta", "lam"), **both}, rules["q_delta"], t, inputs)


def test_an_undecayed_read_of_a_decayed_address_is_a_decayed_read() -> None:
    undecayed = Rule("a", decay(g), delta_write(k, v, strength=beta, residual=lam * p, reads="previous"), read(q))
    decayed = Rule("b", decay(g), delta_write(k, v, strength=beta, residual=p), read(q))
    inputs = drawn(undecayed)
    t = inputs.tensors
    agree(undecayed, {**t, "lam": t["g"].exp()}, decayed, without(t, "lam"), inputs)


def test_order_does_not_matter_where_the_erased_address_is_orthogonal_to_the_key() -> None:
    first, last = Rule("a", decay(gc), E, D, read(q)), Rule("b", decay(gc), D, E, read(q))
    together = Rule("c", decay(gc), simultaneous(E, D), read(q))
    inputs = drawn(first)
    t = inputs.tensors
    unit = torch.nn.functional.normalize(t["k"], dim=-1)
    apart = {**t, "k": unit, "e": t["e"] - (t["e"] * unit).sum(-1, keepdim=True) * unit}
    agree(first, apart, last, apart, inputs)
    agree(first, apart, together, apart, inputs)


def without(tensors: Any, *names: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def agree(one: Rule, its: Any, other: Rule, others: Any, inputs: Inputs) -> None:
    """Both rules give one result."""
    first, second = (
        run(rule, dataclasses.replace(inputs, tensors={name: given_[name] for name in rule.operands}))
        for rule, given_ in ((one, its), (other, others))
    )
    assert relative_error(first.output, second.output) < 1e-12
    assert relative_error(first.state, second.state) < 1e-12
