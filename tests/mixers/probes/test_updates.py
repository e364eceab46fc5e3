"""Size and rank of updates, health of states."""

from __future__ import annotations

import json

import numpy as np
import torch
from probed import H, K, eda, heads, one, operands, probed, same
from torch import Tensor

from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.probes.quantities import Name
from archsearch.mixers.zoo import rules


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
