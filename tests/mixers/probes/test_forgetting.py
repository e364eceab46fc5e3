"""Whether an old token can still be read, and what took it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from probed import ODD, H, K, T, V, at, dot, eda, one, operands, probed, same

from archsearch.dsl import Rule
from archsearch.lowering import lower
from archsearch.mixers.probes.anatomy import Cause, parts_of
from archsearch.mixers.probes.forgetting import Forgetting
from archsearch.mixers.probes.quantities import Name, Quantity
from archsearch.mixers.probes.replay import prepared, replay
from archsearch.mixers.zoo import rules


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
        same(tuple(head[place] for head in found.curves["lost"].heads), torch.stack(expected))


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
    assert [(event["taken_by"], event["cause"], event["lost"]) for event in lost] == [(7, cause.value, 7)]
    assert math.isclose(lost[0]["share"], 1 - math.exp(-5) if cause is Cause.DECAY else 1.0)
    assert found.figures[f"{cause.value}_largest"][0] == 1.0
    assert found.figures["distance_when_lost"] == (7.0,)


def test_what_nobody_touches_stays_readable() -> None:
    assert [event for event in story(None).events if event["written"] == 0] == []
