"""Steps and drift against their formulas."""

from __future__ import annotations

import math

from probed import at, dot, heads, one, operands, probed, q_delta, same
from torch import Tensor

from archsearch.mixers.probes.quantities import Name
from archsearch.mixers.zoo import rules


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
