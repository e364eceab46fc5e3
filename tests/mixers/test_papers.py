"""Every rule of the zoo against its paper's recurrence, written here a second time as plain matrices, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from archsearch.dsl import Kind
from archsearch.kernels.conformance.setting import relative_error
from archsearch.kernels.dispatch import compile
from archsearch.lowering import lower
from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.zoo import rules

TOKENS, HEADS, VALUE_HEADS, KEY, VALUE = 53, 2, 4, 5, 3
ROOT = KEY**-0.5

Token = dict[str, Tensor]
Step = Callable[[Token, Tensor], tuple[Tensor, Tensor]]
"""One token of one head: operands and state [K, V] -> the state after it and what is read [V]."""


def eye() -> Tensor:
    return torch.eye(KEY).double()


def diag(g: Tensor) -> Tensor:
    """Diag(exp(g)) of a log decay per head or per channel."""
    return torch.diag(g.exp().expand(KEY))


def outer(x: Tensor, y: Tensor) -> Tensor:
    return torch.outer(x, y)


def linear(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    s = s + outer(t["k"], t["v"])
    return s, ROOT * s.T @ t["q"]


def linear_attention(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    """The state's last column is the normaliser's."""
    s = s + outer(t["k"], torch.cat([t["v"], torch.ones(1)]))
    read, n = s[:, :-1].T @ t["q"], s[:, -1] @ t["q"]
    return s, read / n.abs().clamp(min=1e-6)


def mlstm(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    """Unstabilised, as 2405.04517, Eqs. 19-21."""
    s = t["g"].exp() * s + t["i"] * outer(t["k"], torch.cat([t["v"], torch.ones(1)]))
    read, n = ROOT * s[:, :-1].T @ t["q"], ROOT * s[:, -1] @ t["q"]
    return s, read / n.abs().clamp(min=1.0)


def decayed_write(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    """RetNet, simple GLA, GLA, HGRN2."""
    s = diag(t["g"]) @ s + outer(t["k"], t["v"])
    return s, ROOT * s.T @ t["q"]


def mamba2(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    s = t["g"].exp() * s + outer(t["dt"] * t["k"], t["v"])
    return s, s.T @ t["q"]


def mamba3(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    """h = a h + (1 - lam) dt a B_(t-1) x_(t-1)^T + lam dt B x^T."""
    a, dt, lam = t["g"].exp(), t["dt"], t["lam"]
    s = a * s + (1 - lam) * dt * a * outer(t["k1"], t["v1"]) + lam * dt * outer(t["k"], t["v"])
    return s, s.T @ t["q"]


def rwkv6(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    kv = outer(t["k"], t["v"])
    return diag(t["g"]) @ s + kv, (s + torch.diag(t["u"]) @ kv).T @ t["q"]


def delta(t: Token, s: Tensor, beta: str = "beta", decay: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(I - beta k k^T) D s + beta k v^T."""
    k, b = t["k"], t[beta]
    D = eye() if decay is None else decay
    s = (eye() - b * outer(k, k)) @ D @ s + b * outer(k, t["v"])
    return s, ROOT * s.T @ t["q"]


def stepped(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    """Kaczmarz, implicit and exact steps differ in eta alone."""
    return delta(t, s, "eta", diag(t["g"]))


def gated_delta(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    return delta(t, s, decay=diag(t["g"]))


def ckda(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    return delta(t, s, decay=torch.diag(t["g_sign"] * t["g"].exp()))


def gdn2(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    k = t["k"]
    s = (eye() - outer(k, t["b"] * k)) @ diag(t["g"]) @ s + outer(k, t["w"] * t["v"])
    return s, ROOT * s.T @ t["q"]


def qed(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    k = t["k"]
    s = (eye() - outer(k, t["b"] * k + t["lam"] * t["d"])) @ diag(t["g"]) @ s + outer(k, t["w"] * t["v"])
    return s, ROOT * s.T @ t["q"]


def q_delta(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    k, beta = t["k"], t["beta"]
    s = (eye() - beta * outer(k, k + t["lam"] * t["q"])) @ (t["g"].exp() * s) + beta * outer(k, t["v"])
    return s, ROOT * s.T @ t["q"]


def eda(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    k, e, beta = t["k"], t["e"], t["beta"]
    erased = (eye() - t["gamma"] * outer(e, e)) @ diag(t["g"]) @ s
    s = (eye() - beta * outer(k, k)) @ erased + beta * outer(k, t["v"])
    return s, ROOT * s.T @ t["q"]


def eda_joint(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    k, e, beta = t["k"], t["e"], t["beta"]
    s = (eye() - t["gamma"] * outer(e, e) - beta * outer(k, k)) @ diag(t["g"]) @ s + beta * outer(k, t["v"])
    return s, ROOT * s.T @ t["q"]


def eda_q_delta(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    k, e, beta = t["k"], t["e"], t["beta"]
    erased = (eye() - t["gamma"] * outer(e, e)) @ diag(t["g"]) @ s
    s = (eye() - beta * outer(k, k + t["lam"] * t["q"])) @ erased + beta * outer(k, t["v"])
    return s, ROOT * s.T @ t["q"]


def products(n: int) -> Step:
    """n Householder steps a token, after a decay where there is one."""

    def step(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
        s = t["g"].exp() * s if "g" in t else s
        for j in range(1, n + 1):
            k, beta = t[f"k{j}"], t[f"beta{j}"]
            s = (eye() - beta * outer(k, k)) @ s + beta * outer(k, t[f"v{j}"])
        return s, ROOT * s.T @ t["q"]

    return step


def comba(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    k, p, beta = t["k"], t["p"], t["beta"]
    s = (t["g"].exp() * eye() - beta * outer(k, p)) @ s + beta * outer(k, t["v"])
    return s, ROOT * s.T @ (t["q"] - t["d"] * p)


def rwkv7(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    r, kap, a = t["q"], t["kap"], t["a"]
    k = t["k"] * (1 + (a - 1) * t["m"])
    s = (diag(t["g"]) - outer(a * kap, kap)) @ s + outer(k, t["v"])
    return s, s.T @ r + (r * t["u"] * k).sum() * t["v"]


def dplr(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    D = diag(t["g"]) if "g" in t else eye()
    s = (D + outer(t["a"], t["b"])) @ s + outer(t["k"], t["v"])
    return s, ROOT * s.T @ t["q"]


def preconditioned(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    written = t["beta"] * torch.diag(t["m"]) @ t["k"]
    s = (eye() - outer(written, t["k"])) @ diag(t["g"]) @ s + outer(written, t["v"])
    return s, ROOT * s.T @ t["q"]


def shifted(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    """k is the key of the token before: alpha s + eta k_(t-1) (v_t - s^T k_(t-1))^T."""
    k = t["k"]
    s = t["g"].exp() * s + t["eta"] * outer(k, t["v"] - s.T @ k)
    return s, ROOT * s.T @ t["q"]


PAPERS: dict[str, Step] = {
    "linear": linear,
    "linear_attention": linear_attention,
    "mlstm": mlstm,
    "retnet": decayed_write,
    "simple_gla": decayed_write,
    "mamba2": mamba2,
    "mamba3": mamba3,
    "gla": decayed_write,
    "hgrn2": decayed_write,
    "rwkv6": rwkv6,
    "delta_net": delta,
    "gated_delta_net": gated_delta,
    "kaczmarz": stepped,
    "implicit": stepped,
    "exact_ode": stepped,
    "kda": gated_delta,
    "ckda": ckda,
    "gdn2": gdn2,
    "qed": qed,
    "q_delta": q_delta,
    "eda": eda,
    "eda_scalar": eda,
    "eda_joint": eda_joint,
    "eda_q_delta": eda_q_delta,
    "delta_product": products(2),
    "gated_delta_product": products(2),
    "comba": comba,
    "rwkv7": rwkv7,
    "dplr": dplr,
    "iplr": dplr,
    "precond_gdn": preconditioned,
    "precond_kda": preconditioned,
    "shifted": shifted,
}
RULES = {
    **{name: rules[name] for name in PAPERS},
    **{rule.name: rule for n in (1, 3, 5) for rule in (delta_product(n, gated=True), delta_product(n, gated=False))},
}
STEPS = PAPERS | {name: products(int(name[-1])) for name in RULES if name not in PAPERS}


def hard(name: str) -> Token:
    """[1, T, H, ...]: keys that share a direction and repeat, strengths at 0, 1 and 2, decays at 0, -1e-4, -5, -50."""
    common = torch.randn(HEADS, KEY)
    drawn: Token = {}
    for operand in RULES[name].operands.values():
        sizes = {"B": 1, "T": TOKENS, "H": HEADS, "HV": VALUE_HEADS, "K": KEY, "V": VALUE}
        x = torch.randn([sizes[dim] for dim in operand.shape.strip("[]").split(", ")])
        where = torch.rand(x.shape)
        if operand.is_address:
            x = torch.nn.functional.normalize(x + common, dim=-1)
            x[:, 7:10] = x[:, 7:8]
        elif operand.kind is Kind.LOG_DECAY:
            ends = torch.tensor([0.0, -1e-4, -5.0, -50.0])[torch.randint(4, x.shape)]
            x = torch.where(where < 0.4, ends, -0.1 * x.abs())
        elif operand.kind is Kind.SIGN:
            x = torch.where(where < 0.5, -1.0, 1.0)
        elif operand.kind is not Kind.VALUE:
            top = 2.0 if name in ("delta_net", "ckda") or "product" in name else 1.0
            ends = torch.tensor([0.0, 1.0, top])[torch.randint(3, x.shape)]
            x = torch.where(where < 0.4, ends, x.sigmoid())
        drawn[operand.name] = x.double()
    if name in ("dplr", "iplr"):
        drawn["a"] = -drawn["b"] * torch.rand(drawn["b"].shape).double()
    return drawn


def entering(name: str) -> Tensor:
    """A state [1, HV, K, V], with a column more for a normaliser."""
    return torch.randn(1, VALUE_HEADS, KEY, lower(RULES[name]).columns(VALUE)).double()


def by_the_paper(name: str, step: Step, operands: Token, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [1, T, HV, V] and the final state [1, HV, K, V], head by head and token by token."""
    outputs, states = torch.zeros(1, TOKENS, VALUE_HEADS, VALUE).double(), state.clone()
    shared = {operand.name for operand in RULES[name].operands.values() if operand.is_address}
    for h in range(VALUE_HEADS):
        own = {each: h * HEADS // VALUE_HEADS if each in shared else h for each in operands}
        for t in range(TOKENS):
            token = {each: x[0, t, own[each]] for each, x in operands.items()}
            states[0, h], outputs[0, t, h] = step(token, states[0, h])
    return outputs, states


def test_every_rule_has_its_paper() -> None:
    assert set(rules) <= set(PAPERS)


@pytest.mark.parametrize("name", STEPS)
def test_the_rule_is_the_recurrence_of_its_paper(name: str) -> None:
    operands, state = hard(name), entering(name)
    output, final = by_the_paper(name, STEPS[name], operands, state)
    backends: list[tuple[Any, int | None]] = [("reference", None), ("torch", 7), ("torch", 64)]
    for backend, chunk in backends:
        found = compile(RULES[name], backend, chunk)(initial_state=state, scale=None, cu_seqlens=None, **operands)
        assert relative_error(found.output, output) < 1e-12
        assert relative_error(found.state, final) < 1e-12


@pytest.mark.parametrize("name", STEPS)
def test_the_step_of_a_decoder_is_the_papers(name: str) -> None:
    operands, state = hard(name), entering(name)
    output, final = by_the_paper(name, STEPS[name], operands, state)
    compiled = compile(RULES[name], "torch")
    steps: list[Tensor] = []
    for t in range(TOKENS):
        result = compiled.step(state=state, scale=None, **{name: x[:, t] for name, x in operands.items()})
        state = result.state
        steps.append(result.output)
    assert relative_error(torch.stack(steps, 1), output) < 1e-12
    assert relative_error(state, final) < 1e-12


def test_a_recurrence_that_is_not_the_papers_is_seen() -> None:
    """The same comparison fails for Comba that reads the decayed state, and for EDA in the other order."""
    for name, step in (("comba", _comba_decayed), ("eda", _eda_reversed)):
        operands, state = hard(name), entering(name)
        found = compile(RULES[name], "reference")(initial_state=state, scale=None, cu_seqlens=None, **operands)
        assert not torch.allclose(found.output, by_the_paper(name, step, operands, state)[0], rtol=1e-3, atol=1e-3)


def _comba_decayed(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    s = (eye() - t["beta"] * outer(t["k"], t["p"])) @ diag(t["g"]) @ s + t["beta"] * outer(t["k"], t["v"])
    return s, ROOT * s.T @ (t["q"] - t["d"] * t["p"])


def _eda_reversed(t: Token, s: Tensor) -> tuple[Tensor, Tensor]:
    k, e, beta = t["k"], t["e"], t["beta"]
    s = (eye() - beta * outer(k, k)) @ diag(t["g"]) @ s + beta * outer(k, t["v"])
    s = (eye() - t["gamma"] * outer(e, e)) @ s
    return s, ROOT * s.T @ t["q"]
