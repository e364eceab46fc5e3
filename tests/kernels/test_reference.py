"""Each rule against a loop written from its paper's equation here, one head and one token at a time, as matrices."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from archsearch.dsl import (
    Rule,
    bonus,
    channel_gate,
    decay,
    delta_write,
    erase,
    gate,
    key,
    log_decay,
    query,
    read,
    simultaneous,
    value,
    write,
)
from archsearch.kernels.conformance import Inputs, Shape, draw
from archsearch.kernels.conformance.setting import relative_error
from archsearch.kernels.dispatch import compile
from archsearch.lowering import lower
from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.zoo import rules

SHAPE = Shape(batch=2, tokens=9, heads=2, value_heads=4, key_dim=5, value_dim=3)

State = Tensor
"""[K, V]: papers that write it [V, K] are transposed."""
Token = Any
"""The operands of one token of one head by name: vectors and numbers."""
Step = Callable[[Token, State], tuple[State, Tensor]]


def reflection(beta: Tensor, k: Tensor, x: Tensor | None = None) -> Tensor:
    """I - beta k x^T."""
    return torch.eye(len(k), dtype=k.dtype) - beta * torch.outer(k, k if x is None else x)


def linear(t: Token, s: State) -> tuple[State, Tensor]:
    """S = S + k v^T, o = S^T q (2006.16236, Eqs. 18-19)."""
    s = s + torch.outer(t.k, t.v)
    return s, s.T @ t.q


def retention(t: Token, s: State) -> tuple[State, Tensor]:
    """S = alpha S + k v^T (2307.08621, Eq. 6)."""
    s = t.g.exp() * s + torch.outer(t.k, t.v)
    return s, s.T @ t.q


def mamba2(t: Token, s: State) -> tuple[State, Tensor]:
    """h = A h + dt B x, y = C h (2405.21060, Eq. 1, discretised; A scalar)."""
    s = t.g.exp() * s + torch.outer(t.dt * t.k, t.v)
    return s, s.T @ t.q


def gla(t: Token, s: State) -> tuple[State, Tensor]:
    """S = Diag(alpha) S + k v^T (2312.06635, Eq. 3)."""
    s = torch.diag(t.g.exp()) @ s + torch.outer(t.k, t.v)
    return s, s.T @ t.q


def delta_net(t: Token, s: State) -> tuple[State, Tensor]:
    """S = (I - beta k k^T) S + beta k v^T (2406.06484, Sec. 2.2)."""
    s = reflection(t.beta, t.k) @ s + t.beta * torch.outer(t.k, t.v)
    return s, s.T @ t.q


def gated_delta_net(t: Token, s: State) -> tuple[State, Tensor]:
    """S = alpha (I - beta k k^T) S + beta k v^T (2412.06464, Eq. 10)."""
    s = t.g.exp() * reflection(t.beta, t.k) @ s + t.beta * torch.outer(t.k, t.v)
    return s, s.T @ t.q


def kda(t: Token, s: State) -> tuple[State, Tensor]:
    """S = (I - beta k k^T) Diag(alpha) S + beta k v^T (2510.26692, Eq. 1)."""
    s = reflection(t.beta, t.k) @ torch.diag(t.g.exp()) @ s + t.beta * torch.outer(t.k, t.v)
    return s, s.T @ t.q


def gdn2(t: Token, s: State) -> tuple[State, Tensor]:
    """S = (I - k (b k)^T) Diag(alpha) S + k (w v)^T (2606.26560, Eq. 6)."""
    one = torch.ones((), dtype=s.dtype)
    s = reflection(one, t.k, t.b * t.k) @ torch.diag(t.g.exp()) @ s + torch.outer(t.k, t.w * t.v)
    return s, s.T @ t.q


def q_delta(t: Token, s: State) -> tuple[State, Tensor]:
    """S' = alpha S; S = S' + beta k (v - S'^T (k + lam q))^T; o as S'^T q + beta (k.q) (v - S'^T x) (2606.08804, Eqs.
    19-20).
    """
    decayed = t.g.exp() * s
    error = t.v - decayed.T @ (t.k + t.lam * t.q)
    return decayed + t.beta * torch.outer(t.k, error), decayed.T @ t.q + t.beta * (t.k @ t.q) * error


def eda(t: Token, s: State) -> tuple[State, Tensor]:
    """S = (I - beta k k^T)(I - gamma e e^T) D S + beta k v^T (2606.26560, Eq. 8)."""
    d = torch.diag(t.g.exp()) if t.g.dim() else t.g.exp() * torch.eye(len(t.k), dtype=s.dtype)
    s = reflection(t.beta, t.k) @ reflection(t.gamma, t.e) @ d @ s + t.beta * torch.outer(t.k, t.v)
    return s, s.T @ t.q


def eda_q_delta(t: Token, s: State) -> tuple[State, Tensor]:
    """S = (I - beta k (k + lam q)^T)(I - gamma e e^T) alpha S + beta k v^T."""
    mixed = reflection(t.beta, t.k, t.k + t.lam * t.q)
    s = mixed @ reflection(t.gamma, t.e) @ (t.g.exp() * s) + t.beta * torch.outer(t.k, t.v)
    return s, s.T @ t.q


def product(n: int, *, gated: bool) -> Step:
    """H_j = (I - beta_j k_j k_j^T) H_{j-1} + beta_j k_j v_j^T from H_0 = alpha S (2502.10297, Eq. 5)."""

    def step(t: Token, s: State) -> tuple[State, Tensor]:
        s = t.g.exp() * s if gated else s
        for j in range(1, n + 1):
            k, v, beta = (getattr(t, f"{name}{j}") for name in ("k", "v", "beta"))
            s = reflection(beta, k) @ s + beta * torch.outer(k, v)
        return s, s.T @ t.q

    return step


def rwkv6(t: Token, s: State) -> tuple[State, Tensor]:
    """o = (S + Diag(u) k v^T)^T r; S = Diag(w) S + k v^T (2404.05892)."""
    output = (s + torch.diag(t.u) @ torch.outer(t.k, t.v)).T @ t.q
    return torch.diag(t.g.exp()) @ s + torch.outer(t.k, t.v), output


def rwkv7(t: Token, s: State) -> tuple[State, Tensor]:
    """S = (Diag(w) - (a kap) kap^T) S + k v^T (2503.14456)."""
    s = (torch.diag(t.g.exp()) - torch.outer(t.a * t.kap, t.kap)) @ s + torch.outer(t.k, t.v)
    return s, s.T @ t.q


def comba(t: Token, s: State) -> tuple[State, Tensor]:
    """S = (alpha - beta k p^T) S + beta k v^T; o = S^T (q - 0.02 p) (2506.02475)."""
    s = (t.g.exp() * torch.eye(len(t.k), dtype=s.dtype) - t.beta * torch.outer(t.k, t.p)) @ s
    s = s + t.beta * torch.outer(t.k, t.v)
    return s, s.T @ (t.q - 0.02 * t.p)


def signed(t: Token, s: State) -> tuple[State, Tensor]:
    """S = (I - beta k k^T) Diag(alpha) S + beta k v^T with alpha in (-1, 1) (2609.24797)."""
    s = reflection(t.beta, t.k) @ torch.diag(t.g_sign * t.g.exp()) @ s + t.beta * torch.outer(t.k, t.v)
    return s, s.T @ t.q


def joint(t: Token, s: State) -> tuple[State, Tensor]:
    """S = (I - beta k k^T - gamma e e^T) Diag(alpha) S + beta k v^T."""
    both = reflection(t.beta, t.k) + reflection(t.gamma, t.e) - torch.eye(len(t.k), dtype=s.dtype)
    s = both @ torch.diag(t.g.exp()) @ s + t.beta * torch.outer(t.k, t.v)
    return s, s.T @ t.q


def shifted(t: Token, s: State) -> tuple[State, Tensor]:
    """S = alpha S + eta m (v - S_{t-1}^T m)^T with m the key of the token before (2608.27763)."""
    s = t.g.exp() * s + t.eta * torch.outer(t.m, t.v - s.T @ t.m)
    return s, s.T @ t.q


ZOO: dict[str, tuple[Step, float | None]] = {
    "linear": (linear, None),
    "retnet": (retention, None),
    "simple_gla": (retention, None),
    "mamba2": (mamba2, 1.0),
    "gla": (gla, None),
    "delta_net": (delta_net, None),
    "gated_delta_net": (gated_delta_net, None),
    "kda": (kda, None),
    "gdn2": (gdn2, None),
    "q_delta": (q_delta, None),
    "eda": (eda, None),
    "eda_scalar": (eda, None),
    "eda_q_delta": (eda_q_delta, None),
    "gated_delta_product": (product(2, gated=True), None),
}

q, k, v, e, p, u, kap, m = (query("q"), key("k"), value("v"), key("e"), key("p"), key("u"), key("kap"), key("m"))
g, gc, gcs = log_decay("g"), log_decay("g", per="channel"), log_decay("g", per="channel", signed=True)
beta, gamma, eta, a = gate("beta"), gate("gamma"), gate("eta"), channel_gate("a")

WRITTEN: list[tuple[Rule, Step, float | None]] = [
    (delta_product(3, gated=False), product(3, gated=False), None),
    (delta_product(4, gated=True), product(4, gated=True), None),
    (Rule("rwkv6", read(q, scale=1.0, bonus=bonus(u, k, v)), decay(gc), write(k, v)), rwkv6, 1.0),
    (
        Rule(
            "rwkv7",
            decay(gc),
            simultaneous(delta_write(a * kap, 0.0 * v, residual=kap, reads="previous"), write(k, v)),
            read(q, scale=1.0),
        ),
        rwkv7,
        1.0,
    ),
    (
        Rule(
            "comba",
            decay(g),
            delta_write(k, v, strength=beta, residual=p, reads="previous"),
            read(q - 0.02 * p),
        ),
        comba,
        None,
    ),
    (Rule("ckda", decay(gcs), delta_write(k, v, strength=beta), read(q)), signed, None),
    (
        Rule("eda_joint", decay(gc), simultaneous(erase(e, strength=gamma), delta_write(k, v, strength=beta)), read(q)),
        joint,
        None,
    ),
    (Rule("shifted", decay(g), delta_write(m, v, strength=eta, reads="previous"), read(q)), shifted, None),
]
CASES = [(rules[name], *expected) for name, expected in ZOO.items()] + WRITTEN


def walked(rule: Rule, step: Step, scale: float, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, HV, V] and states [B, HV, K, V] of the loop."""
    output = torch.zeros_like(inputs.output_slope)
    states = inputs.initial_state.clone()
    shared = {operand.name for operand in rule.operands.values() if operand.is_address}
    for row in range(SHAPE.batch):
        for head in range(SHAPE.value_heads):
            of = {
                name: head // (SHAPE.value_heads // SHAPE.heads) if name in shared else head for name in rule.operands
            }
            for t in range(SHAPE.tokens):
                token = SimpleNamespace(**{name: x[row, t, of[name]] for name, x in inputs.tensors.items()})
                states[row, head], read_ = step(token, states[row, head].clone())
                output[row, t, head] = scale * read_
    return output, states


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize(("rule", "step", "scale"), CASES, ids=[case[0].name for case in CASES])
def test_rule_is_its_equation(rule: Rule, step: Step, scale: float | None, backend: Any) -> None:
    inputs = draw(lower(rule), SHAPE, seed=3)
    output, state = walked(rule, step, SHAPE.key_dim**-0.5 if scale is None else scale, inputs)
    found = compile(rule, backend, 4)(initial_state=inputs.initial_state, scale=None, **inputs.tensors)
    assert relative_error(found.output, output) < 1e-12
    assert relative_error(found.state, state) < 1e-12


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_a_call_may_set_the_scale(backend: Any) -> None:
    inputs = draw(lower(rules["q_delta"]), SHAPE)
    compiled = compile(rules["q_delta"], backend)
    plain = compiled(initial_state=None, scale=1.0, **inputs.tensors)
    scaled = compiled(initial_state=None, scale=3.0, **inputs.tensors)
    assert relative_error(scaled.output, 3 * plain.output) < 1e-12
    assert torch.equal(scaled.state, plain.state)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_no_initial_state_is_a_state_of_zeros(backend: Any) -> None:
    inputs = draw(lower(rules["eda"]), SHAPE)
    compiled = compile(rules["eda"], backend)
    left_out = compiled(scale=None, **inputs.tensors)
    zeros = compiled(initial_state=torch.zeros_like(inputs.initial_state), scale=None, **inputs.tensors)
    assert torch.equal(left_out.output, zeros.output)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_outputs_have_the_dtype_of_values_and_states_are_wide(dtype: torch.dtype) -> None:
    inputs = draw(lower(rules["kda"]), SHAPE, dtype=dtype)
    for backend in ("reference", "torch"):
        found = compile(rules["kda"], backend)(scale=None, **inputs.tensors)
        assert found.output.dtype == dtype
        assert found.state.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_a_rule_without_values_takes_its_width_from_the_state() -> None:
    forget = Rule("forget", decay(g), erase(e), read(q))
    inputs = draw(lower(forget), SHAPE)
    for backend in ("reference", "torch"):
        found = compile(forget, backend)(initial_state=inputs.initial_state, scale=None, **inputs.tensors)
        assert found.output.shape == (SHAPE.batch, SHAPE.tokens, SHAPE.value_heads, SHAPE.value_dim)


def test_a_gate_may_be_called_like_a_sign() -> None:
    """Padding gives signs a 1; what only ends in `_sign` is padded with 0 as any other operand."""
    odd = gate("odd_sign")
    rule = Rule("odd", decay(gcs), delta_write(k, v, strength=odd), read(q))
    inputs = draw(lower(rule), SHAPE)
    expected, found = (compile(rule, backend, 4)(scale=None, **inputs.tensors) for backend in ("reference", "torch"))
    zeroed = {**inputs.tensors, "odd_sign": torch.zeros_like(inputs.tensors["odd_sign"])}
    assert relative_error(found.state, expected.state) < 1e-12
    nothing = compile(rule, "torch", 4)(scale=None, **zeroed)
    assert not nothing.output.any()
