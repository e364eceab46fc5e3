"""What an erase disturbs, and the angles of addresses."""

from __future__ import annotations

import math

import torch
from probed import H, K, T, at, dot, eda, heads, one, operands, outer, probed, same
from torch import Tensor

from archsearch.mixers.probes.quantities import Name
from archsearch.mixers.zoo import rules


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
