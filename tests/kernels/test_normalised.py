"""Normalised reads: the formulas of their papers, what the divisor counts, and what has none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from archsearch.dsl import Rule, channel_gate, decay, erase, gate, key, log_decay, parse_rule, query, read, value, write
from archsearch.errors import OperandError, RuleError
from archsearch.kernels import reference
from archsearch.kernels.call import checked
from archsearch.kernels.conformance.inputs import KINK, Shape, draw, smooth
from archsearch.kernels.conformance.sensitivity import Sensitivity
from archsearch.kernels.conformance.setting import token_loop
from archsearch.kernels.conformance.suite import setting_of
from archsearch.kernels.dispatch import compile
from archsearch.kernels.normalising import widened
from archsearch.kernels.triton import operation
from archsearch.lowering import lower
from archsearch.lowering.cost import Sizes, cost
from archsearch.mixers.zoo import rules

q, k, v, g, i, w = query("q"), key("k"), value("v"), log_decay("g"), gate("i"), channel_gate("w", of="value")
MLSTM = Rule("capped", decay(g), write(k, v, strength=i), read(q, normaliser=1.0))
PLAIN = Rule("capped", decay(g), write(k, v, strength=i), read(q))
B, T, H, K, V = 2, 37, 2, 5, 3


def randn(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float64)


def near(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_linear_attention_is_a_weighted_mean_of_the_values(backend: Any) -> None:
    """2006.16236, Eq. 8: sum_j phi(q_t).phi(k_j) v_j / sum_j phi(q_t).phi(k_j) over j <= t, phi = elu + 1."""
    features, others, values = (torch.nn.functional.elu(randn(B, T, H, K)) + 1 for _ in range(3))
    values = randn(B, T, H, V)
    found = compile(rules["linear_attention"], backend)(q=features, k=others, v=values).output
    for t in range(T):
        weights = torch.einsum("bhk,bjhk->bjh", features[:, t], others[:, : t + 1])
        near(found[:, t], torch.einsum("bjh,bjhv->bhv", weights / weights.sum(1, keepdim=True), values[:, : t + 1]))


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_mlstm_with_running_maxima_is_the_same_without_them(backend: Any) -> None:
    """2405.04517, Eqs. 19-27 with the stabiliser m: C and n scaled by exp(-m), the divisor max(|n.q|, exp(-m))."""
    tensors: dict[str, Any] = {"q": randn(B, T, H, K), "k": randn(B, T, H, K), "v": randn(B, T, H, V)}
    forget, log_i = torch.nn.functional.logsigmoid(randn(B, T, H) + 2), 3 * randn(B, T, H)
    result = compile(MLSTM, backend)(**tensors, g=forget, i=log_i.exp())
    c, n, m = randn(B, H, V, K) * 0, randn(B, H, K) * 0, torch.full((B, H), -torch.inf, dtype=torch.float64)
    for t in range(T):
        new = torch.maximum(forget[:, t] + m, log_i[:, t])
        f, s = (forget[:, t] + m - new).exp(), (log_i[:, t] - new).exp()
        m, key_t = new, tensors["k"][:, t] / K**0.5
        c = f[..., None, None] * c + s[..., None, None] * torch.einsum("bhv,bhk->bhvk", tensors["v"][:, t], key_t)
        n = f[..., None] * n + s[..., None] * key_t
        query_t = tensors["q"][:, t]
        divisor = torch.maximum((n * query_t).sum(-1).abs(), (-m).exp())
        near(result.output[:, t], torch.einsum("bhvk,bhk->bhv", c, query_t) / divisor[..., None])
    near(result.state[..., V] * (-m).exp()[..., None] / K**0.5, n)


def test_without_the_divisor_it_is_the_plain_read_beside_a_value_of_ones() -> None:
    tensors: dict[str, Any] = {"q": randn(B, T, H, K), "k": randn(B, T, H, K), "v": randn(B, T, H, V)}
    tensors |= {"g": -randn(B, T, H).exp(), "i": randn(B, T, H).sigmoid()}
    state = randn(B, H, K, V + 1)
    whole = compile(MLSTM, "torch")(**tensors, initial_state=state)
    ones: dict[str, Any] = {**tensors, "v": torch.cat([tensors["v"], torch.ones(B, T, H, 1, dtype=torch.float64)], -1)}
    plain = compile(PLAIN, "torch")(**ones, initial_state=state)
    near(whole.output, plain.output[..., :V] / plain.output[..., V:].abs().clamp(min=1.0))
    near(whole.state, plain.state)


def test_steps_and_pieces_equal_the_whole() -> None:
    compiled = compile(MLSTM, "torch")
    tensors: dict[str, Any] = {"q": randn(B, T, H, K), "k": randn(B, T, H, K), "v": randn(B, T, H, V)}
    tensors |= {"g": -randn(B, T, H).exp(), "i": 5 * randn(B, T, H).sigmoid()}
    whole, state = compiled(**tensors), torch.zeros(B, H, K, V + 1, dtype=torch.float64)
    for t in range(T):
        step = compiled.step(state=state, **{name: x[:, t] for name, x in tensors.items()})
        near(step.output, whole.output[:, t])
        state = step.state
    near(state, whole.state)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_the_quotient_alone_is_rounded(backend: Any) -> None:
    tensors: dict[str, Any] = {"q": randn(B, T, H, K), "k": randn(B, T, H, K), "v": randn(B, T, H, V)}
    tensors |= {"i": 5 * randn(B, T, H).sigmoid()}
    short: dict[str, Any] = {name: x.bfloat16() for name, x in tensors.items()} | {"g": -randn(B, T, H).exp().float()}
    wide: dict[str, Any] = {name: x.float() for name, x in short.items()}
    found, expected = (compile(MLSTM, backend)(**given).output for given in (short, wide))
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected.bfloat16())


def test_kernels_hand_on_numerator_and_divisor_in_float32(interpreted: torch.device) -> None:
    tensors: dict[str, Any] = {"q": randn(1, 21, 1, 16), "k": randn(1, 21, 1, 16), "v": randn(1, 21, 2, 16)}
    tensors |= {"i": 5 * randn(1, 21, 2).sigmoid()}
    short: dict[str, Any] = {name: x.half().to(interpreted) for name, x in tensors.items()}
    short |= {"g": -randn(1, 21, 2).exp().float().to(interpreted)}
    compiled = compile(MLSTM, "triton")
    call = checked(compiled.normal_form, short, None, None, None)
    wide = widened(compiled.normal_form, call, aligned=True)
    assert operation.run(compiled.normal_form, compiled.key, wide, None).output.dtype == torch.float32
    assert compiled(**short).output.dtype == torch.float16


def test_no_slope_is_asked_for_where_rounding_decides_whether_the_divisor_counts() -> None:
    form, shape = lower(MLSTM), Shape(batch=2, tokens=200, heads=1, value_heads=2, key_dim=5, value_dim=7)
    drawn = draw(form, shape)
    inputs = smooth(form, drawn)
    call = checked(form, drawn.tensors, drawn.initial_state, None, None)
    divisor = reference.run(form, widened(form, call, aligned=False)).output[..., shape.value_dim].abs()
    close = (divisor - 1).abs() <= KINK
    assert 0 < int(close.sum()) < 0.1 * close.numel()
    assert not inputs.output_slope[close].any() and torch.equal(inputs.output_slope[~close], drawn.output_slope[~close])


def test_the_sensitivity_of_a_normalised_rule_is_that_of_the_quotient() -> None:
    setting = setting_of(rules["linear_attention"])
    inputs = setting.inputs()
    found = Sensitivity(setting.rule, inputs, token_loop(setting.rule, inputs))
    assert 0.5 < found.of("output") < 2 and found.of("initial_state") < 2


def test_kernels_take_columns_in_sixteens_and_give_back_as_many_as_there_are(interpreted: torch.device) -> None:
    tensors: dict[str, Any] = {"q": randn(1, 21, 1, 16), "k": randn(1, 21, 1, 16), "v": randn(1, 21, 2, 16)}
    tensors |= {"g": -randn(1, 21, 2).exp(), "i": 5 * randn(1, 21, 2).sigmoid()}
    tensors = {name: x.float().to(interpreted).requires_grad_() for name, x in tensors.items()}
    state = randn(1, 2, 16, 17).float().to(interpreted).requires_grad_()
    slopes, kept = randn(1, 21, 2, 16).float().to(interpreted), randn(1, 2, 16, 17).float().to(interpreted)
    found: list[list[Tensor]] = []
    for backend in ("reference", "triton"):
        result = compile(MLSTM, backend)(**tensors, initial_state=state)
        loss = (result.output * slopes).sum() + (result.state * kept).sum()
        found.append([result.output, result.state, *torch.autograd.grad(loss, [*tensors.values(), state])])
    for a, b in zip(*found, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5 * float(a.detach().abs().max().clamp(min=1)))


def test_a_divisor_is_part_of_the_meaning_and_of_the_text() -> None:
    assert len({MLSTM.hash, PLAIN.hash, Rule("r", decay(g), write(k, v, strength=i), read(q, normaliser=2)).hash}) == 3
    assert parse_rule(str(MLSTM)) == MLSTM
    assert "normaliser max(|n|, 1)" in str(lower(MLSTM))


def test_a_column_more_is_counted() -> None:
    sizes, wider = Sizes(K, V, H, H, 2), Sizes(K, V + 1, H, H, 2)
    assert cost(lower(MLSTM), sizes).state_bytes == H * K * (V + 1) * 4
    assert cost(lower(MLSTM), sizes).recurrent_flops == cost(lower(PLAIN), wider).recurrent_flops + H * V


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: read(q, normaliser=0), "the normaliser of a read is a number > 0; got 0"),
        (lambda: read(q, normaliser=gate("n")), 'the normaliser of a read is a number > 0; got gate("n")'),
        (
            lambda: lower(Rule("r", write(k, w * v), read(q, normaliser=1.0))),
            "the normaliser of rule 'r' counts what is written, and 'w' gates each value channel on its own: there is "
            "no one count. Use a gate per head, or leave the normaliser out",
        ),
        (
            lambda: lower(Rule("r", erase(k), read(q, normaliser=1.0))),
            "the normaliser of rule 'r' needs a value that is written; there is none. Add a write",
        ),
    ],
)
def test_a_divisor_that_counts_nothing_is_refused(build: Any, message: str) -> None:
    with pytest.raises(RuleError) as caught:
        build()
    assert str(caught.value).startswith(message)


def test_a_state_without_the_column_is_refused() -> None:
    tensors: dict[str, Any] = {"q": randn(B, T, H, K), "k": randn(B, T, H, K), "v": randn(B, T, H, V)}
    with pytest.raises(OperandError, match=r"\[2, 2, 5, 4\]"):
        compile(rules["linear_attention"])(**tensors, initial_state=randn(B, H, K, V))
