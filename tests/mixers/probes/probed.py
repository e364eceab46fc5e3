"""Rules, operands and token loops for the tests of probes, written from the rules' equations; no tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
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
from archsearch.kernels.conformance import made_up
from archsearch.lowering import lower
from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.probes.probe import LayerProbe, Samples, probe_operands
from archsearch.mixers.probes.quantities import Name, Quantity
from archsearch.mixers.zoo import rules

B, T, H, K, V = 2, 40, 2, 5, 4
EVERY = Samples(states=T, followed=T, windows=3)
q, k, v, e = query("q"), key("k"), value("v"), key("e")
g, beta, gamma, lam = log_decay("g"), gate("beta"), gate("gamma"), gate("lam")
ODD = Rule(
    "odd",
    read(q, bonus=bonus(key("u"), k, v)),
    erase(e, strength=0.5 * gamma),
    decay(log_decay("gc", per="channel", signed=True)),
    simultaneous(
        delta_write(k - 0.5 * e, channel_gate("w", of="value") * v, strength=beta, residual=channel_gate("b") * k),
        erase(q, reads="previous"),
        write(e, v),
    ),
    decay(-0.25),
    delta_write(k, v),
)

MADE_UP = [rule for rule in made_up.LONG if "v" in rule.operands]  # without a value a call needs a state
LONG = [*rules.values(), ODD, *MADE_UP, delta_product(3, gated=True)]


def unit(*shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


def operands(rule: Rule, heads: int = H) -> dict[str, Tensor]:
    """Random operands of a rule, in float64: unit addresses, gates in (0, 1), decays of about 0.9."""
    sizes = {"B": B, "T": T, "H": heads, "HV": heads, "K": K, "V": V}
    found: dict[str, Tensor] = {}
    for operand in lower(rule).operands:
        shape = [sizes[name] for name in operand.shape.strip("[]").split(", ")]
        if operand.is_address:
            found[operand.name] = unit(*shape)
        elif operand.kind.value == "log_decay":
            found[operand.name] = -0.2 * torch.rand(*shape, dtype=torch.float64)
        elif operand.kind.value == "sign":
            found[operand.name] = torch.randint(0, 2, shape).double() * 2 - 1
        elif operand.is_gate:
            found[operand.name] = torch.rand(*shape, dtype=torch.float64)
        else:
            found[operand.name] = torch.randn(*shape, dtype=torch.float64)
    return found


def probed(rule: Rule, tensors: dict[str, Tensor], samples: Samples = EVERY) -> LayerProbe:
    return LayerProbe(0, tuple(probe_operands(lower(rule), tensors, samples)))


def one(layer: LayerProbe, name: Name, of: str = "k") -> Quantity:
    """The quantity of that name and row."""
    (found,) = (each for each in layer.of(name) if each.of == of)
    return found


def outer(a: Tensor, b: Tensor) -> Tensor:
    return a[..., :, None] * b[..., None, :]


def dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


def at(state: Tensor, address: Tensor) -> Tensor:
    """S^T x."""
    return (state * address[..., :, None]).sum(-2)


def eda(x: dict[str, Tensor]) -> Iterator[tuple[int, Tensor, Tensor, Tensor, Tensor]]:
    """(t, S_(t-1), decayed, erased, S_t) of Eq. 8 of arXiv 2606.26560."""
    state = torch.zeros(B, x["k"].shape[2], K, V, dtype=torch.float64)
    for t in range(T):
        decayed = x["g"][:, t].exp()[..., None] * state
        erased = decayed - x["gamma"][:, t, :, None, None] * outer(x["e"][:, t], at(decayed, x["e"][:, t]))
        error = x["v"][:, t] - at(erased, x["k"][:, t])
        after = erased + x["beta"][:, t, :, None, None] * outer(x["k"][:, t], error)
        yield t, state, decayed, erased, after
        state = after


def q_delta(x: dict[str, Tensor]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(t, S_(t-1), S_t) of Eqs. 19-20 of arXiv 2606.08804."""
    state = torch.zeros(B, H, K, V, dtype=torch.float64)
    for t in range(T):
        decayed = x["g"][:, t, :, None, None].exp() * state
        address = x["k"][:, t] + x["lam"][:, t, :, None] * x["q"][:, t]
        error = x["v"][:, t] - at(decayed, address)
        after = decayed + x["beta"][:, t, :, None, None] * outer(x["k"][:, t], error)
        yield t, state, after
        state = after


def same(found: tuple[float | None, ...], expected: Tensor) -> None:
    """A figure against its values a head [HV]."""
    assert all(value is not None for value in found)
    np.testing.assert_allclose(np.array(found, dtype=float), expected.numpy(), rtol=1e-9, atol=1e-12)


def heads(values: list[Tensor]) -> Tensor:
    """Means over tokens and sequences of [B, HV] a token."""
    return torch.stack(values).mean((0, 1))
