"""What query and key read, against the formulas."""

from __future__ import annotations

import numpy as np
import torch
from probed import H, at, heads, one, operands, probed, q_delta, same
from torch import Tensor

from archsearch.mixers.probes.quantities import Name
from archsearch.mixers.zoo import rules


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
