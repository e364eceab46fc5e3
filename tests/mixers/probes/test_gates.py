"""Shares of the gates, and how far the decays remember."""

from __future__ import annotations

import numpy as np
import torch
from probed import H, one, operands, probed, same

from archsearch.mixers.probes.quantities import Name
from archsearch.mixers.zoo import rules


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
