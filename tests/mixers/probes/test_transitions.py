"""Spectra of single transitions and of their products."""

from __future__ import annotations

import torch
from probed import H, K, T, one, operands, outer, probed, same
from torch import Tensor

from archsearch.mixers.probes.probe import Samples
from archsearch.mixers.probes.quantities import Name
from archsearch.mixers.zoo import rules


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
