"""The zoo as a mapping: what it finds, how it refuses, and that every published rule is one or the other."""

from typing import Any

import pytest
import torch

from archsearch.dsl import Rule, decay, delta_write, key, log_decay, query, read, value
from archsearch.errors import RuleError
from archsearch.kernels.dispatch import compile
from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.layer.options import Sigmoid
from archsearch.mixers.layer.papers import paper_layer
from archsearch.mixers.lookup import find_rule
from archsearch.mixers.models.options import ENTRIES
from archsearch.mixers.refused import REFUSED, NotAffine, OfAPattern
from archsearch.mixers.zoo import NAMES, RefusedRuleError, UnknownRuleError, rules


def test_an_alias_is_found_and_not_listed() -> None:
    assert rules["gdn"] is rules["gated_delta_net"] and "gdn" in rules and "gdn" not in list(rules)


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(RuleError) as error:
        rules["qdelta"]
    assert str(error.value).startswith(
        "unknown rule 'qdelta'; did you mean q_delta? The zoo: linear, linear_attention, retnet"
    )
    assert isinstance(error.value, KeyError) and "qdelta" not in rules and rules.get("qdelta") is None


@pytest.mark.parametrize(("name", "near"), [("GLA", "gla"), ("GDN", "gdn"), ("Gated_DeltaNet", "gated_delta_net")])
def test_a_name_in_capitals_has_the_one_in_small_letters_nearest(name: str, near: str) -> None:
    with pytest.raises(RuleError, match=f"^unknown rule '{name}'; did you mean {near}\\?"):
        rules[name]


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("TTT-Linear", "ttt_linear"),
        ("Titans", "titans"),
        ("sLSTM", "slstm"),
        ("MesaNet", "mesa_net"),
        ("RG-LRU", "rg_lru"),
        ("Mamba-1", "mamba1"),
    ],
)
def test_a_refused_name_is_refused_as_its_paper_writes_it_too(name: str, refused: str) -> None:
    with pytest.raises(RefusedRuleError) as error:
        rules[name]
    assert str(error.value) == REFUSED[refused].why(refused) and name not in rules


@pytest.mark.parametrize(
    ("name", "near"), [("RWKV-7", "rwkv7"), ("Gated KalmaNet", "gated_kalman_net"), ("titan", "titans")]
)
def test_the_nearest_name_may_be_one_that_is_refused(name: str, near: str) -> None:
    with pytest.raises(UnknownRuleError, match=f"^unknown rule '{name}'; did you mean {near}\\?"):
        rules[name]


@pytest.mark.parametrize("name", [None, 3, ["gla"]])
def test_what_is_no_text_names_no_rule(name: Any) -> None:
    with pytest.raises(RuleError) as error:
        rules[name]
    assert str(error.value).startswith(f"a rule's name must be text; got {name!r}. The zoo: linear, ")
    assert name not in rules


@pytest.mark.parametrize(("name", "writes", "gated"), [("delta_product3", 3, False), ("gated_delta_product4", 4, True)])
def test_a_family_has_a_member_of_any_size_with_the_papers_layer(name: str, writes: int, gated: bool) -> None:
    rule = find_rule(name)
    assert rule.name == name and name in rules and name not in list(rules)
    assert sum(each.startswith("v") for each in rule.operands) == writes and ("g" in rule.operands) is gated
    layer = paper_layer(rule)
    assert layer is not None and layer.operands[f"beta{writes}"] == Sigmoid(scale=2.0)
    assert Mixer(rule, 32, 2)(torch.randn(1, 5, 32)).shape == (1, 5, 32)


def test_two_writes_have_one_name() -> None:
    assert rules["delta_product2"] == rules["delta_product"]
    assert rules["gated_delta_product2"] == rules["gated_delta_product"]
    assert not {"delta_product0", "delta_product03", "delta_product100"} & {name for name in rules}
    assert "delta_product0" not in rules and "delta_product100" not in rules


NONLINEAR = {
    "ttt_linear": "the written error depends on S through a LayerNorm inside the inner loss",
    "ttt_mlp": "the written error depends on S through the hidden layer of an MLP memory",
    "titans": "the gradient that is written depends on S through the hidden layer of an MLP memory",
    "lact": "the update depends on S through a SwiGLU memory and an orthogonalised step",
    "atlas": "the update depends on S through the optimum over a window of tokens",
    "lattice": "every slot depends on S through its projection on the unit sphere",
    "muon_ssm": "the update depends on S through an orthogonalised momentum",
    "m2rnn": "the next state depends on S through tanh",
    "sane": "the next state depends on S through tanh",
    "rla": "the residual that is written depends on S through a clip",
    "rdn": "the residual that is written depends on S through a clip",
    "residual_delta_net": "the residual that is written depends on S through a clip",
    "slstm": "every gate depends on S through a product with what was read of S",
}


def test_every_rule_that_is_not_affine_is_refused_with_the_term_and_the_place() -> None:
    assert {name for name, refusal in REFUSED.items() if isinstance(refusal, NotAffine)} == set(NONLINEAR)
    for name, reason in NONLINEAR.items():
        with pytest.raises(RuleError) as error:
            find_rule(name)
        start = f"rule {name!r} is not affine in the state: {reason}; no backend runs it. Remove that term ("
        assert str(error.value).startswith(start) and name not in rules


def test_the_released_kernel_of_q_delta_is_refused_by_name() -> None:
    with pytest.raises(RuleError) as error:
        rules["q_delta_released"]
    assert str(error.value) == (
        "rule 'q_delta_released' is refused: the released kernel of Q-Delta solves with K X^T where its recurrence "
        "needs X K^T, so that its result depends on the chunk size and is no recurrence at all. q_delta is the paper's "
        "(psmiz/Q-Delta, chunks of 64)"
    )


def test_no_refused_name_is_a_rule_and_every_reason_is_one_line() -> None:
    assert not set(REFUSED) & set(NAMES)
    for name, refusal in REFUSED.items():
        assert name.isidentifier() and "\n" not in refusal.why(name) and refusal.why(name).endswith(")")


def test_a_kalman_filter_is_a_rule_whose_gain_is_an_operand() -> None:
    """As its refusal says. S_t = a S_(t-1) + noise, v = S^T k + noise: the covariance needs the keys alone."""
    q, k, w, v, g = query("q"), key("k"), key("w"), value("v"), log_decay("g")
    rule = Rule("kalman", decay(g), delta_write(w, v, residual=k), read(q))
    tokens, size, noise = 23, 4, 0.3
    t = {name: torch.randn(1, tokens, 1, size).double() for name in ("q", "k", "v")}
    t["g"] = -torch.rand(1, tokens, 1).double()
    eye = torch.eye(size).double()
    p, s = eye, torch.zeros(size, size).double()
    gains: list[torch.Tensor] = []
    for i in range(tokens):
        a, key_ = t["g"][0, i, 0].exp(), t["k"][0, i, 0]
        p, s = a**2 * p + (1 - a**2) * eye, a * s
        gain = p @ key_ / (noise + key_ @ p @ key_)
        s = s + torch.outer(gain, t["v"][0, i, 0] - s.T @ key_)
        p = p - torch.outer(gain, key_ @ p)
        gains.append(gain)
    t["w"] = torch.stack(gains)[None, :, None]
    found = compile(rule, "torch", 16)(scale=None, cu_seqlens=None, initial_state=None, **t)
    torch.testing.assert_close(found.state[0, 0], s)


def test_a_performer_is_linear_attention_of_mapped_addresses() -> None:
    """As its refusal says: o_t = sum_j (phi(q_t) . phi(k_j)) v_j / sum_j phi(q_t) . phi(k_j), j <= t."""
    tokens, size, features = 23, 4, 6
    q, k, v = (torch.randn(1, tokens, 1, size).double() for _ in range(3))
    random = torch.randn(features, size).double()
    mapped = [(x @ random.T - x.square().sum(-1, keepdim=True) / 2).exp() for x in (q, k)]
    scores = (mapped[0][0, :, 0] @ mapped[1][0, :, 0].T).tril()
    expected = scores @ v[0, :, 0] / scores.sum(1, keepdim=True)
    given = {"q": mapped[0], "k": mapped[1], "v": v}
    found = compile(rules["linear_attention"], "torch", 16)(scale=None, cu_seqlens=None, initial_state=None, **given)
    torch.testing.assert_close(found.output[0, :, 0], expected)


def test_a_refusal_that_names_a_layer_names_one_that_exists() -> None:
    named = {refusal.entry for refusal in REFUSED.values() if isinstance(refusal, OfAPattern)}
    assert named == {"attention", "window", "mla", "mamba", "griffin", "conv"} == set(ENTRIES) - {"rule"}
    with pytest.raises(RuleError) as error:
        find_rule("rg_lru")
    assert str(error.value) == (
        "'rg_lru' is no rule but a layer: write griffin in model.pattern "
        "(RG-LRU in Griffin's recurrent block, arXiv 2402.19427)"
    )
