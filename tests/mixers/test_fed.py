"""A rule as its layer feeds it gives what the rule gives on the operands that the layer makes."""

from typing import Any

import pytest
import torch

from archsearch.dsl import Rule
from archsearch.kernels.dispatch import compile
from archsearch.mixers.layer.fed import as_fed
from archsearch.mixers.layer.options import Gated, Layer
from archsearch.mixers.layer.planning import layer_of
from archsearch.mixers.lookup import find_rule


@pytest.mark.parametrize("scale", [-1.0, 0.5])
@pytest.mark.parametrize("name", ["iplr", "dplr"])
def test_it_gives_what_the_rule_gives_on_what_the_layer_makes(name: str, scale: float) -> None:
    rule = find_rule(name)
    fed = as_fed(rule, Layer(operands={"a": Gated("b", scale=scale)}))
    assert set(fed.operands) == (set(rule.operands) - {"a"}) | {"a_gate"}
    generator = torch.Generator().manual_seed(0)
    q, k, v, b = (torch.randn(2, 9, 2, 4, generator=generator, dtype=torch.float64) for _ in range(4))
    given = {"q": q, "k": k, "v": v, "b": b / b.norm(dim=-1, keepdim=True)}
    given |= {"g": -torch.rand(2, 9, 2, 4, generator=generator)} if name == "dplr" else {}
    gate = torch.rand(2, 9, 2, 4, generator=generator, dtype=torch.float64)
    made = {**given, "a": scale * gate * given["b"]}
    expected: Any = compile(rule, "reference")
    found: Any = compile(fed, "reference")
    torch.testing.assert_close(found(**given, a_gate=gate).output, expected(**made).output)


def test_a_rule_whose_addresses_are_its_own_is_left_alone() -> None:
    for name in ("gated_delta_net", "rwkv7", "qed"):
        rule = find_rule(name)
        assert as_fed(rule, layer_of(rule, None)) is rule
    iplr = find_rule("iplr")
    assert as_fed(iplr, Layer()) is iplr
    assert isinstance(as_fed(iplr, layer_of(iplr, None)), Rule)
