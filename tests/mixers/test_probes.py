"""Every quantity of a probe against its formula, on a token loop written here from the rule's equation."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from archsearch.dsl import (
    Kind,
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
from archsearch.errors import ConfigError, OperandError
from archsearch.kernels.conformance import made_up
from archsearch.kernels.dispatch import compile
from archsearch.lowering import NormalForm, lower
from archsearch.lowering.normal_form import text
from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.models.blocks import Block
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.mixers.probes.anatomy import Cause, evaluate, level, parts_of
from archsearch.mixers.probes.forgetting import Forgetting
from archsearch.mixers.probes.probe import LayerProbe, Samples, mixers_of, operands_of, probe_model, probe_operands
from archsearch.mixers.probes.quantities import LeftOut, Name, Quantity
from archsearch.mixers.probes.remaining import Remaining
from archsearch.mixers.probes.replay import Moment, prepared, replay
from archsearch.mixers.zoo import rules

B, T, H, K, V = 2, 40, 2, 5, 4
EVERY = Samples(states=T, followed=T, windows=3)
q, k, v, e = query("q"), key("k"), value("v"), key("e")
g, beta, gamma, lam = log_decay("g"), gate("beta"), gate("gamma"), gate("lam")
ODD = Rule(
    "odd",
    read(q, bonus=bonus(key("u"), k, v)),
    erase(e, strength=0.5 * gamma),
    decay(log_decay("gc", per="channel", signed=True)),
    simultaneous(
        delta_write(k - 0.5 * e, channel_gate("w", of="value") * v, strength=beta, residual=channel_gate("b") * k),
        erase(q, reads="previous"),
        write(e, v),
    ),
    decay(-0.25),
    delta_write(k, v),
)


def unit(*shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


def operands(rule: Rule, heads: int = H) -> dict[str, Tensor]:
    """Random operands of a rule, in float64: unit addresses, gates in (0, 1), decays of about 0.9."""
    sizes = {"B": B, "T": T, "H": heads, "HV": heads, "K": K, "V": V}
    found: dict[str, Tensor] = {}
    for operand in lower(rule).operands:
        shape = [sizes[name] for name in operand.shape.strip("[]").split(", ")]
        if operand.is_address:
            found[operand.name] = unit(*shape)
        elif operand.kind.value == "log_decay":
            found[operand.name] = -0.2 * torch.rand(*shape, dtype=torch.float64)
        elif operand.kind.value == "sign":
            found[operand.name] = torch.randint(0, 2, shape).double() * 2 - 1
        elif operand.is_gate:
            found[operand.name] = torch.rand(*shape, dtype=torch.float64)
        else:
            found[operand.name] = torch.randn(*shape, dtype=torch.float64)
    return found


def probed(rule: Rule, tensors: dict[str, Tensor], samples: Samples = EVERY) -> LayerProbe:
    return LayerProbe(0, tuple(probe_operands(lower(rule), tensors, samples)))


def one(layer: LayerProbe, name: Name, of: str = "k") -> Quantity:
    """The quantity of that name and row."""
    (found,) = (each for each in layer.of(name) if each.of == of)
    return found


def outer(a: Tensor, b: Tensor) -> Tensor:
    return a[..., :, None] * b[..., None, :]


def dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


def at(state: Tensor, address: Tensor) -> Tensor:
    """S^T x."""
    return (state * address[..., :, None]).sum(-2)


def eda(x: dict[str, Tensor]) -> Iterator[tuple[int, Tensor, Tensor, Tensor, Tensor]]:
    """(t, S_(t-1), decayed, erased, S_t) of Eq. 8 of arXiv 2606.26560."""
    state = torch.zeros(B, x["k"].shape[2], K, V, dtype=torch.float64)
    for t in range(T):
        decayed = x["g"][:, t].exp()[..., None] * state
        erased = decayed - x["gamma"][:, t, :, None, None] * outer(x["e"][:, t], at(decayed, x["e"][:, t]))
        error = x["v"][:, t] - at(erased, x["k"][:, t])
        after = erased + x["beta"][:, t, :, None, None] * outer(x["k"][:, t], error)
        yield t, state, decayed, erased, after
        state = after


def q_delta(x: dict[str, Tensor]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(t, S_(t-1), S_t) of Eqs. 19-20 of arXiv 2606.08804."""
    state = torch.zeros(B, H, K, V, dtype=torch.float64)
    for t in range(T):
        decayed = x["g"][:, t, :, None, None].exp() * state
        address = x["k"][:, t] + x["lam"][:, t, :, None] * x["q"][:, t]
        error = x["v"][:, t] - at(decayed, address)
        after = decayed + x["beta"][:, t, :, None, None] * outer(x["k"][:, t], error)
        yield t, state, after
        state = after


def same(found: tuple[float | None, ...], expected: Tensor) -> None:
    """A figure against its values a head [HV]."""
    assert all(value is not None for value in found)
    np.testing.assert_allclose(np.array(found, dtype=float), expected.numpy(), rtol=1e-9, atol=1e-12)


def heads(values: list[Tensor]) -> Tensor:
    """Means over tokens and sequences of [B, HV] a token."""
    return torch.stack(values).mean((0, 1))


# The loop that is watched


MADE_UP = [rule for rule in made_up.LONG if "v" in rule.operands]  # without a value a call needs a state
LONG = [*rules.values(), ODD, *MADE_UP, delta_product(3, gated=True)]


@pytest.mark.parametrize("rule", LONG, ids=lambda rule: rule.name)
def test_the_watched_loop_is_the_token_loop_and_its_changes_add_up(rule: Rule) -> None:
    form, tensors = lower(rule), operands(rule)
    moments = list(replay(form, prepared(form, tensors)))
    whole = compile(rule, backend="reference")(**tensors, initial_state=None, scale=None, cu_seqlens=None)
    torch.testing.assert_close(moments[-1].after, whole.state[..., :V], rtol=1e-12, atol=1e-12)
    for moment in moments:
        changes = [change for step in moment.steps for change in step.changes().values()]
        torch.testing.assert_close(moment.before + sum(changes), moment.after, rtol=1e-10, atol=1e-12)


def test_rows_come_apart_into_strength_residual_and_target() -> None:
    parts = {part.label: part for part in parts_of(lower(ODD))}
    assert list(parts) == ["e (row 0)", "k + -0.5 e", "q", "e (row 3)", "k"]
    kinds = {label: (part.erases, part.delta, part.writes) for label, part in parts.items()}
    assert kinds["e (row 0)"] == kinds["q"] == (True, False, False)
    assert kinds["k + -0.5 e"] == kinds["k"] == (False, True, True)
    assert kinds["e (row 3)"] == (False, False, True)
    joint = parts["k + -0.5 e"]
    assert (text(joint.residual), text(joint.target)) == ("b k", "w v")
    assert [operand.name for operand in joint.strength.gates] == ["beta"]
    x = operands(ODD)
    torch.testing.assert_close(level(joint, x), x["beta"] * x["b"].mean(-1))
    torch.testing.assert_close(level(parts["e (row 0)"], x), 0.5 * x["gamma"])


def test_a_rule_without_a_part_leaves_its_quantities_out_by_name() -> None:
    def left_out(name: str) -> set[Name]:
        return {each.name for each in probed(rules[name], operands(rules[name])).left_out}

    recalls = {Name.CONTRACTION, Name.DRIFT, Name.GATES, Name.COLLATERAL}
    assert left_out("linear") == {*recalls, Name.MEMORY}
    assert left_out("gla") == recalls
    assert left_out("delta_net") == {Name.GATES, Name.COLLATERAL, Name.MEMORY}
    assert left_out("q_delta") == {Name.COLLATERAL}
    assert left_out("eda") == set()
    found = probe_operands(lower(rules["linear"]), operands(rules["linear"]))
    reasons = {each.name: each.reason for each in found if isinstance(each, LeftOut)}
    assert reasons[Name.MEMORY] == "nothing decays"


def test_everything_is_told_of_every_rule_in_numbers_that_json_holds() -> None:
    for rule in (ODD, Rule("unread", delta_write(k, v), read(q - q)), Rule("none", write(k - k, v), read(q))):
        layer = probed(rule, operands(rule))
        assert {each.name for each in layer.found} == set(Name)
        json.dumps(layer.as_json(), allow_nan=False)


# Steps


def test_contraction_is_beta_times_the_product_of_key_and_residual() -> None:
    x = operands(rules["q_delta"])
    x["beta"][0, 3:9, 0] = 3.0
    x["beta"][1, :20, 1] = 0.0
    step = x["beta"] * (1 + x["lam"] * dot(x["k"], x["q"]))
    found = one(probed(rules["q_delta"], x), Name.CONTRACTION)
    same(found.figures["mean"], step.mean((0, 1)))
    same(found.figures["share_outside"], ((step <= 0) | (step >= 2)).double().mean((0, 1)))
    same(found.figures["largest_factor"], (1 - step).abs().amax((0, 1)))
    histogram = found.curves["step"]
    width = histogram.x[1] - histogram.x[0]
    assert all(math.isclose(sum(y for y in head if y is not None) * width, 1.0) for head in histogram.heads)


def test_drift_is_of_target_and_prediction_with_the_state_before_the_token() -> None:
    x = operands(rules["q_delta"])
    address = x["k"] + x["lam"][..., None] * x["q"]
    wanted, predicted, residual = list[Tensor](), list[Tensor](), list[Tensor]()
    for t, before, _ in q_delta(x):
        if t:
            target = x["v"][:, t] - x["v"][:, t - 1]
            moved = at(before, address[:, t] - address[:, t - 1])
            wanted.append(target.norm(dim=-1))
            predicted.append(moved.norm(dim=-1))
            residual.append((target - moved).norm(dim=-1))
    found = one(probed(rules["q_delta"], x), Name.DRIFT).figures
    same(found["target"], heads(wanted))
    same(found["prediction"], heads(predicted))
    same(found["residual"], heads(residual))


# Readouts


def test_readouts_are_compared_before_the_token() -> None:
    x = operands(rules["q_delta"])
    cosines, of_query, of_key = list[Tensor](), list[Tensor](), list[Tensor]()
    for t, before, _ in q_delta(x):
        if t:
            read_q, read_k = at(before, x["q"][:, t]), at(before, x["k"][:, t])
            cosines.append(torch.cosine_similarity(read_q, read_k, dim=-1))
            of_query.append(read_q)
            of_key.append(read_k)
    layer = probed(rules["q_delta"], x)
    same(one(layer, Name.READOUT).figures["mean"], heads(cosines))
    energy = one(layer, Name.ENERGY)
    for head in range(H):
        reads = torch.cat(of_query)[:, head].numpy()
        _, values, axes = np.linalg.svd(reads - reads.mean(0), full_matrices=False)
        inside = (torch.cat(of_key)[:, head].numpy() @ axes.T) ** 2
        variance = np.cumsum(values**2) / np.sum(values**2)
        np.testing.assert_allclose(np.array(energy.curves["query_variance"].heads[head], float), variance)
        shares = np.cumsum(inside.sum(0)) / inside.sum()
        np.testing.assert_allclose(np.array(energy.curves["key_energy"].heads[head], float), shares)
        assert energy.figures["components_for_90_percent"][head] == np.searchsorted(variance, 0.9) + 1


def test_a_query_that_is_the_key_reads_what_the_key_reads() -> None:
    x = operands(rules["q_delta"])
    layer = probed(rules["q_delta"], x | {"q": x["k"]})
    same(one(layer, Name.READOUT).figures["mean"], torch.ones(H))
    same(one(layer, Name.GEOMETRY, "k·q").figures["mean_size"], torch.ones(H))


def test_no_query_feedback_is_the_gated_delta_rule_in_every_quantity() -> None:
    x = operands(rules["q_delta"])
    x["lam"].zero_()
    plain = probed(rules["gated_delta_net"], {name: x[name] for name in "qkvg"} | {"beta": x["beta"]})
    assert plain.as_json() == probed(rules["q_delta"], x).as_json()


# Gates


def test_gate_shares_are_those_of_the_paper() -> None:
    x = operands(rules["eda"])
    abar = x["g"].exp().mean(-1)
    budget = torch.stack([1 - abar, abar * x["beta"], abar * x["gamma"]])
    shares = budget / budget.sum(0)
    found = one(probed(rules["eda"], x), Name.GATES, "")
    for name, share in zip(("decay", "delta", "erase"), shares, strict=True):
        same(found.figures[name], share.mean((0, 1)))
    slow = [shares[2][:, :, head][abar[:, :, head] >= 0.9].mean() for head in range(H)]
    same(found.figures["erase_where_slow"], torch.stack(slow))
    assert [y is not None for y in found.curves["erase"].heads[0]] == [False] * 8 + [True] * 2


def test_a_closed_erase_has_no_share_and_changes_no_read() -> None:
    x = operands(rules["eda"])
    x["gamma"].zero_()
    layer = probed(rules["eda"], x)
    same(one(layer, Name.GATES, "").figures["erase"], torch.zeros(H))
    same(one(layer, Name.COLLATERAL, "e").figures["random"], torch.zeros(H))
    same(one(layer, Name.UPDATES, "").figures["erase_median"], torch.zeros(H))
    same(one(layer, Name.ERASURE).figures["erase_share"], torch.zeros(H))


def test_channel_gates_count_with_their_mean() -> None:
    x = operands(rules["gdn2"])
    abar = x["g"].exp().mean(-1)
    delta = abar * x["b"].mean(-1)
    found = one(probed(rules["gdn2"], x), Name.GATES, "").figures["delta"]
    same(found, (delta / (1 - abar + delta)).mean((0, 1)))


def test_memory_length_is_that_of_the_decay() -> None:
    x = operands(rules["kda"])
    found = one(probed(rules["kda"], x), Name.MEMORY, "")
    for head in range(H):
        lengths = 1 / (1 - x["g"][:, :, head].exp())
        np.testing.assert_allclose(found.figures["median"][head] or 0, np.median(lengths.numpy()), rtol=2e-3)
        np.testing.assert_allclose(found.figures["percentile_90"][head] or 0, np.quantile(lengths, 0.9), rtol=2e-3)
        medians = 1 / (1 - x["g"][:, :, head].exp().flatten(0, 1).median(0).values)
        np.testing.assert_allclose(np.array(found.curves["channels"].heads[head], float), medians.sort().values)
    x["g"].zero_()
    assert one(probed(rules["kda"], x), Name.MEMORY, "").figures["median"] == (None,) * H


# Addresses


def test_collateral_change_is_of_the_readout_with_each_address_in_place() -> None:
    x = operands(rules["eda"])
    stand_ins = {
        "learned": x["e"],
        "other_head": x["e"].flip(2),
        "other_token": x["e"].roll(T // 2, dims=1),
        "write_key": x["k"],
    }
    shares = {name: list[Tensor]() for name in stand_ins}
    for t, _, decayed, _, _ in eda(x):
        for name, address in stand_ins.items():
            without = decayed - x["gamma"][:, t, :, None, None] * outer(address[:, t], at(decayed, address[:, t]))
            before, after = at(decayed, x["q"][:, t]), at(without, x["q"][:, t])
            if t:
                shares[name].append((after - before).norm(dim=-1) / before.norm(dim=-1))
    found = one(probed(rules["eda"], x), Name.COLLATERAL, "e").figures
    for name, expected in shares.items():
        same(found[name], heads(expected))
    assert all(value is not None and value > 0 for value in found["random"])
    alone = {name: tensor[:, :, :1] for name, tensor in x.items()}
    assert "other_head" not in one(probed(rules["eda"], alone), Name.COLLATERAL, "e").figures


def test_geometry_is_of_every_pair_beside_random_directions() -> None:
    x = operands(rules["eda"])
    layer = probed(rules["eda"], x)
    for pair in (("e", "k"), ("e", "q"), ("k", "q")):
        found = one(layer, Name.GEOMETRY, "·".join(pair)).figures
        same(found["mean_size"], dot(x[pair[0]], x[pair[1]]).abs().mean((0, 1)))
        same(found["random_directions"], torch.full((H,), math.sqrt(2 / (math.pi * K)), dtype=torch.float64))


# Updates and states


def test_updates_are_measured_against_the_state_before() -> None:
    x = operands(rules["eda"])
    ratios: dict[str, list[Tensor]] = {"decay": [], "erase": [], "write": [], "all": []}
    for t, before, decayed, erased, after in eda(x):
        changes = {
            "decay": decayed - before,
            "erase": erased - decayed,
            "write": after - erased,
            "all": after - before,
        }
        if t:
            for name, change in changes.items():
                ratios[name].append(change.flatten(-2).norm(dim=-1) / before.flatten(-2).norm(dim=-1))
    found = one(probed(rules["eda"], x), Name.UPDATES, "").figures
    for name, values in ratios.items():
        same(found[f"{name}_median"], torch.from_numpy(np.median(torch.stack(values).numpy(), axis=(0, 1))))
    same(found["all_mean"], heads(ratios["all"]))


def test_an_update_without_decay_has_a_rank_of_its_writes() -> None:
    for rule, rank in ((rules["delta_net"], 1), (delta_product(3, gated=False), 3)):
        found = one(probed(rule, operands(rule)), Name.UPDATES, "").figures
        same(found["rank_most"], torch.full((H,), float(rank)))
    same(
        one(probed(rules["delta_net"], operands(rules["delta_net"])), Name.UPDATES, "").figures["effective_rank"],
        torch.ones(H),
    )


def test_state_health_is_of_the_states() -> None:
    x = operands(rules["eda"])
    x["g"][:, ::2, 1, 0] = -9.0
    states = torch.stack([after for *_, after in eda(x)])
    found = one(probed(rules["eda"], x), Name.HEALTH, "")
    norms = states.flatten(-2).norm(dim=-1)
    same(found.figures["norm_last"], norms[-1].mean(0))
    same(found.figures["norm_most"], norms.amax((0, 1)))
    values = torch.linalg.svdvals(states[-1])
    shares = values / values.sum(-1, keepdim=True)
    same(found.figures["effective_rank_last"], (-(shares * shares.log()).sum(-1)).exp().mean(0))
    same(found.figures["dead_channels"], torch.tensor([0.0, 0.5 / K], dtype=torch.float64))
    same(found.figures["not_finite"], torch.zeros(H))
    np.testing.assert_allclose(np.array(found.curves["norm"].heads, float), norms.mean(1).T.numpy())


def test_a_state_that_overflows_is_counted_and_nothing_fails() -> None:
    x = {name: tensor.float() for name, tensor in operands(rules["delta_net"]).items()}
    x["beta"].fill_(1e30)
    layer = probed(rules["delta_net"], x)
    counted = one(layer, Name.HEALTH, "").figures["not_finite"]
    assert all(value is not None and value > 0 for value in counted)
    json.dumps(layer.as_json(), allow_nan=False)


# Old tokens


def test_readability_is_of_the_state_at_the_old_key() -> None:
    x = operands(rules["eda"])
    states = torch.stack([after for *_, after in eda(x)], 1)  # [B, T, HV, K, V]
    layer = probed(rules["eda"], x)
    found = one(layer, Name.READABILITY)
    times = sorted({round(t) for t in np.linspace(0, 3 * T // 4 - 1, 3 * T // 4).tolist()})
    for place, distance in enumerate(found.curves["cosine"].x):
        tokens = [t for t in times if t + distance < T]
        later = torch.stack([states[:, t + int(distance)] for t in tokens], 1)
        reads, values = at(later, x["k"][:, tokens]), x["v"][:, tokens]
        cosine = torch.cosine_similarity(reads, values, dim=-1).mean((0, 1))
        same(tuple(head[place] for head in found.curves["cosine"].heads), cosine)
        error = ((reads - values).norm(dim=-1) / values.norm(dim=-1)).transpose(0, 1).flatten(0, 1)
        same(tuple(head[place] for head in found.curves["error"].heads), error.median(0).values)
        first = dot(at(states[:, tokens], x["k"][:, tokens]), values)
        gone = dot(reads, values) < 0.1 * first
        expected = [gone[..., head][first[..., head] > 0].double().mean() for head in range(H)]
        same(tuple(head[place] for head in found.curves["erased"].heads), torch.stack(expected))


@pytest.mark.parametrize("rule", [*rules.values(), ODD], ids=lambda rule: rule.name)
def test_what_is_taken_from_an_old_token_adds_up(rule: Rule) -> None:
    form = lower(rule)
    tensors = prepared(form, operands(rule))
    watching = Forgetting(parts_of(form), tensors, range(T))
    for moment in replay(form, tensors):
        watching.see(moment)
    for each in watching._tracked:
        shares, changes = torch.stack(each.shares), torch.stack(each.changes).sum(1)
        torch.testing.assert_close(changes.cumsum(0), shares, rtol=1e-9, atol=1e-10)


def story(cause: Cause | None) -> Quantity:
    """EDA with one token that writes at the first axis, and a step of token 7 that takes it away."""
    axis = torch.eye(K, dtype=torch.float64)
    x = {name: axis[1].expand(1, T, 1, K).clone() for name in ("q", "k", "e")}
    x |= {"v": axis[2, :V].expand(1, T, 1, V).clone(), "g": torch.zeros(1, T, 1, K, dtype=torch.float64)}
    x |= {name: torch.zeros(1, T, 1, dtype=torch.float64) for name in ("beta", "gamma")}
    x["k"][:, 0], x["v"][:, 0], x["beta"][:, 0] = axis[0], axis[0, :V], 1.0
    if cause is Cause.DECAY:
        x["g"][:, 7] = -5.0
    if cause is Cause.ERASE:
        x["e"][:, 7], x["gamma"][:, 7] = axis[0], 1.0
    if cause is Cause.DELTA:
        x["k"][:, 7], x["v"][:, 7], x["beta"][:, 7] = axis[0], axis[1, :V], 1.0
    return one(probed(rules["eda"], x), Name.ERASURE)


@pytest.mark.parametrize("cause", [Cause.DECAY, Cause.ERASE, Cause.DELTA], ids=lambda cause: cause.value)
def test_the_step_that_removes_a_projection_is_named(cause: Cause) -> None:
    """A decay of exp(-5), an erase at the old key, a write of strength 1 at the old key: each removes it at once."""
    found = story(cause)
    lost = [event for event in found.events if event["written"] == 0]
    assert [(event["taken_by"], event["cause"], event["erased"]) for event in lost] == [(7, cause.value, 7)]
    assert math.isclose(lost[0]["share"], 1 - math.exp(-5) if cause is Cause.DECAY else 1.0)
    assert found.figures[f"{cause.value}_largest"][0] == 1.0
    assert found.figures["distance_when_erased"] == (7.0,)


def test_what_nobody_touches_stays_readable() -> None:
    assert [event for event in story(None).events if event["written"] == 0] == []


def test_what_is_left_of_a_write_is_the_product_of_later_transitions() -> None:
    x = operands(rules["eda"])
    found = one(probed(rules["eda"], x), Name.REMAINING)
    times = sorted({round(t) for t in np.linspace(0, 3 * T // 4 - 1, 3 * T // 4).tolist()})
    place = found.curves["left"].x.index(4.0)
    left = list[Tensor]()
    for written in times:
        y = x["k"][:, written]
        for t in range(written + 1, written + 5):
            y = x["g"][:, t].exp() * y
            y = y - x["gamma"][:, t, :, None] * x["e"][:, t] * dot(x["e"][:, t], y)[..., None]
            y = y - x["beta"][:, t, :, None] * x["k"][:, t] * dot(x["k"][:, t], y)[..., None]
        left.append(dot(x["k"][:, written], y))
    same(tuple(head[place] for head in found.curves["left"].heads), heads(left))
    same(tuple(head[0] for head in found.curves["left"].heads), torch.ones(H))


@pytest.mark.parametrize("rule", LONG, ids=lambda rule: rule.name)
def test_what_is_left_of_a_write_does_not_depend_on_other_values(rule: Rule) -> None:
    """The state of a sequence in which only one token has a value is that write, carried on."""
    form, written = lower(rule), 5
    tensors = prepared(form, operands(rule))
    names = [operand.name for operand in form.operands if operand.kind is Kind.VALUE]
    alone = tensors | {name: torch.zeros_like(tensors[name]) for name in names}
    for name in names:
        alone[name][:, written] = 1.0
    parts = parts_of(form)
    watching = Remaining(parts, tensors["q"], [written])
    *_, last = list(seen(watching, form, alone))
    values = {name: tensor[:, written] for name, tensor in alone.items()}
    rebuilt = torch.zeros_like(last.after)
    for own in watching._own:
        rebuilt += outer(own.place[:, :, 0], evaluate(own.part.row.target, values, last.after[..., 0, :]))
    torch.testing.assert_close(rebuilt, last.after, rtol=1e-9, atol=1e-10)


def seen(watching: Remaining, form: NormalForm, tensors: dict[str, Tensor]) -> Iterator[Moment]:
    for moment in replay(form, tensors):
        watching.see(moment)
        changes = [torch.stack(own.changes).sum(1) for own in watching._own]
        if moment.time > 5:
            for own, change in zip(watching._own, changes, strict=True):
                torch.testing.assert_close(own.left[5] + change[6:].sum(0), own.left[-1], rtol=1e-9, atol=1e-10)
        yield moment


# Transitions


def test_transition_spectra_are_those_of_the_equation() -> None:
    x = operands(rules["eda"])
    identity = torch.eye(K, dtype=torch.float64)

    def matrix(t: int) -> Tensor:
        each = {name: tensor[:, t] for name, tensor in x.items()}
        by_delta = identity - each["beta"][..., None, None] * outer(each["k"], each["k"])
        by_erase = identity - each["gamma"][..., None, None] * outer(each["e"], each["e"])
        return by_delta @ by_erase @ torch.diag_embed(each["g"].exp())

    found = one(probed(rules["eda"], x, Samples(windows=1)), Name.TRANSITION, "")
    first, product = matrix(0), matrix(0)
    for t in range(1, T):
        product = matrix(t) @ product
    same(found.figures["norm"], torch.linalg.matrix_norm(first, 2).mean(0))
    same(found.figures["product_norm_most"], torch.linalg.matrix_norm(product, 2).amax(0))
    values = torch.linalg.eigvals(first)
    same(found.figures["modulus_most"], values.abs().amax((0, 2)))
    assert found.curves["product_norm"].x == (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, float(T))


def test_a_reflection_shows_as_an_eigenvalue_of_minus_one() -> None:
    x = operands(rules["delta_net"])
    x["beta"].fill_(2.0)
    found = one(probed(rules["delta_net"], x), Name.TRANSITION, "").figures
    same(found["real_lowest"], torch.full((H,), -1.0))
    same(found["share_negative"], torch.ones(H))
    same(found["share_complex"], torch.zeros(H))


# Models


def test_a_model_is_probed_in_its_layers_of_the_rule_and_left_as_it_was() -> None:
    rule = Rule("mine", decay(g), delta_write(k, v, strength=beta, residual=query_feedback(q, lam)), read(q))
    model = LanguageModel(rule, Model(width=16, heads=1, layers=3, pattern=("rule", "attention")), None, 20).train()
    tokens = torch.randint(20, (2, 24))
    layers = list(probe_model(model, tokens))
    assert [layer.index for layer in layers] == [0, 2] and model.training
    mixers = mixers_of(model)
    assert not any(mixer._forward_pre_hooks for mixer in mixers.values())
    seen = operands_of(model, mixers, tokens)[0]
    expected = mixers[0].operands(cast(Block, model.blocks[0]).mixer_norm(model.embedding(tokens)))
    assert all(torch.equal(seen[name], expected[name]) for name in expected)
    step = seen["beta"] * dot(seen["k"], seen["k"] + seen["lam"][..., None] * seen["q"])
    found = one(layers[0], Name.CONTRACTION).figures["mean"][0]
    assert found is not None and math.isclose(found, float(step.mean()), rel_tol=1e-5)


def test_short_sequences_and_models_without_the_rule_are_refused() -> None:
    x = {name: tensor[:, :15] for name, tensor in operands(rules["kda"]).items()}
    with pytest.raises(OperandError, match="at least 16 tokens; got 15"):
        probe_operands(lower(rules["kda"]), x)
    model = LanguageModel(rules["kda"], Model(width=16, heads=1, layers=1, pattern=("attention",)), None, 20)
    with pytest.raises(ConfigError, match="needs a layer of the rule"):
        list(probe_model(model, torch.randint(20, (1, 20))))
