"""Mamba-1 and Griffin's block are those of their papers, however a sequence is cut, packed or padded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from archsearch.errors import ConfigError, OperandError
from archsearch.mixers.layer.attention import Attention
from archsearch.mixers.layer.partner_options import Griffin, GriffinSizes, Mamba, MambaSizes
from archsearch.mixers.layer.recurrent import GriffinLayer, MambaLayer
from archsearch.mixers.models import counts
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.mixers.zoo import rules

WIDTH = 12
SIZES = {"mamba": Mamba(2, 5, 3, 4).sizes(WIDTH), "griffin": Griffin(16, 4, 4).sizes(WIDTH, 2)}


def made(kind: str) -> Any:
    torch.manual_seed(3)
    sizes = SIZES[kind]
    layer = MambaLayer(WIDTH, sizes) if isinstance(sizes, MambaSizes) else GriffinLayer(WIDTH, sizes)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer.double()


def tokens(batch: int = 2, length: int = 23) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64)


def convolved(layer: Any, u: Tensor) -> Tensor:
    """sum_j w_j u_(t - W + 1 + j) + b."""
    width = layer.convolution.weight.shape[1]
    padded = F.pad(u, (0, 0, width - 1, 0))
    rows = [(padded[:, t : t + width] * layer.convolution.weight.T).sum(1) for t in range(u.shape[1])]
    return torch.stack(rows, 1) + layer.convolution.bias


def mamba_loop(layer: MambaLayer, x: Tensor) -> Tensor:
    """2312.00752, Algorithm 2 with Eq. 4 for A and the Euler step for B, one token after another."""
    w_u, w_z = layer.projection.chunk(2)
    u = F.silu(convolved(layer, x @ w_u.T))
    sizes = layer.sizes
    w_d, w_b, w_c = layer.selection.split([sizes.rank, sizes.state, sizes.state])
    h, outputs = x.new_zeros(len(x), sizes.channels, sizes.state), list[Tensor]()
    for t in range(x.shape[1]):
        token = u[:, t]
        delta = torch.log1p((token @ w_d.T @ layer.steps.T + layer.dt_bias).exp())
        abar = torch.exp(delta[..., None] * -layer.A_log.exp())
        bbar = delta[..., None] * (token @ w_b.T)[:, None]
        h = abar * h + bbar * token[..., None]
        y = (h * (token @ w_c.T)[:, None]).sum(-1) + layer.D * token
        z = x[:, t] @ w_z.T
        outputs.append((y * z * z.sigmoid()) @ layer.output.T)
    return torch.stack(outputs, 1)


def griffin_loop(layer: GriffinLayer, x: Tensor) -> Tensor:
    """2402.19427, Eqs. 1-4 and Fig. 2, one token after another."""
    w_u, w_g = layer.projection.chunk(2)
    u = convolved(layer, x @ w_u.T)
    block = layer.sizes.channels // layer.sizes.blocks
    w_a, w_i = (torch.block_diag(*half) for half in layer.gates.split(block, 2))
    h, outputs = torch.zeros_like(u[:, 0]), list[Tensor]()
    for t in range(x.shape[1]):
        token = u[:, t]
        r, i = (token @ w_a + layer.gate_bias[0]).sigmoid(), (token @ w_i + layer.gate_bias[1]).sigmoid()
        a = torch.sigmoid(-layer.forget_base) ** (8 * r)  # a^(c r), a = sigmoid(-L)
        h = a * h + (1 - a**2).sqrt() * i * token if t else i * token
        outputs.append((h * F.gelu(x[:, t] @ w_g.T, approximate="tanh")) @ layer.output.T)
    return torch.stack(outputs, 1)


def loop(layer: Any, x: Tensor) -> Tensor:
    return mamba_loop(layer, x) if isinstance(layer, MambaLayer) else griffin_loop(layer, x)


def near(a: Tensor, b: Tensor, bound: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=bound)


@pytest.mark.parametrize("kind", SIZES)
def test_it_is_the_papers_and_so_are_its_gradients(kind: str) -> None:
    layer, x = made(kind), tokens().requires_grad_()
    found, expected, slopes = layer(x), loop(layer, x), tokens()
    near(found, expected)
    given = [x, *layer.parameters()]
    pairs = (torch.autograd.grad((y * slopes).sum(), given) for y in (found, expected))
    for a, b in zip(*pairs, strict=True):
        near(a, b, 1e-10)


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("cuts", [range(24), [0, 1, 1, 4, 15, 16, 23], [0, 23]])
@torch.no_grad()
def test_pieces_of_any_length_equal_the_whole(kind: str, cuts: Any) -> None:
    layer, x = made(kind), tokens()
    cache = layer.init_cache(2)
    near(torch.cat([layer(x[:, a:b], cache=cache) for a, b in pairwise(cuts)], 1), layer(x))
    assert cache.seen.tolist() == [23, 23]


@pytest.mark.parametrize("kind", SIZES)
@torch.no_grad()
def test_packed_sequences_equal_separate_ones_also_in_pieces(kind: str) -> None:
    layer, wholes = made(kind), [tokens(1, length) for length in (9, 3, 21)]
    whole = layer(torch.cat(wholes, 1), cu_seqlens=torch.tensor([0, 9, 12, 33]))
    near(whole, torch.cat([layer(each) for each in wholes], 1))
    cache, seen, found = layer.init_cache(3), [0, 0, 0], [[], [], []]  # type: ignore[var-annotated]
    for lengths in ([4, 0, 12], [1, 1, 1], [0, 0, 7], [3, 1, 0], [1, 1, 1]):
        parts = [each[:, a : a + n] for each, a, n in zip(wholes, seen, lengths, strict=True)]
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        out = layer(torch.cat(parts, 1), cache=cache, cu_seqlens=offsets)
        for i, (a, b) in enumerate(pairwise(offsets.tolist())):
            found[i].append(out[:, a:b])
        seen = [a + n for a, n in zip(seen, lengths, strict=True)]
    assert cache.seen.tolist() == seen == [9, 3, 21]
    near(torch.cat([piece for pieces in found for piece in pieces], 1), whole)


@pytest.mark.parametrize("kind", SIZES)
@torch.no_grad()
def test_the_past_does_not_depend_on_the_future(kind: str) -> None:
    layer, x = made(kind), tokens()
    later = torch.cat([x[:, :14], x[:, 14:] + 1], 1)
    assert torch.equal(layer(later)[:, :14], layer(x)[:, :14])
    assert not torch.isclose(layer(later)[:, 14:], layer(x)[:, 14:]).all(-1).any()


def test_decays_and_steps_start_where_the_papers_have_them() -> None:
    griffin = GriffinLayer(64, Griffin().sizes(64, 4))
    kept = torch.exp(-8 * F.softplus(griffin.forget_base))
    assert kept.min() >= 0.8999 and kept.max() <= 0.9991 and kept.std() > 0.02
    mamba = MambaLayer(64, Mamba().sizes(64))
    assert torch.allclose(mamba.A_log.exp(), torch.arange(1.0, 17).expand(128, 16))
    steps = F.softplus(mamba.dt_bias)
    assert steps.min() >= 1e-4 and steps.max() <= 0.1001 and torch.equal(mamba.D, torch.ones(128))
    constants = {name for name, p in mamba.named_parameters() if getattr(p, "_no_weight_decay", False)}
    assert constants == {"A_log", "dt_bias", "D"}
    constants = {name for name, p in griffin.named_parameters() if getattr(p, "_no_weight_decay", False)}
    assert constants == {"gate_bias", "forget_base"}


def test_a_decay_of_one_has_a_finite_slope() -> None:
    griffin = GriffinLayer(WIDTH, SIZES["griffin"])  # type: ignore[arg-type]
    with torch.no_grad():
        griffin.forget_base.fill_(-200.0)
    griffin(tokens().float()).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in griffin.parameters())


@pytest.mark.parametrize("entry", ["mamba", "griffin"])
def test_counts_equal_live_tensors_and_products(entry: Any) -> None:
    for options in ({}, {"mamba": Mamba(3, 5, 2, 3), "griffin": Griffin(24, 3, 2)}):
        model = Model(WIDTH, 2, 2, (entry,), mlp_ratio=0, **options)  # type: ignore[arg-type]
        net = LanguageModel(rules["gdn"], model, None, 7)
        assert net.parameter_count == counts.parameters(rules["gdn"], model, None, 7)
        assert net.state_bytes == counts.state_bytes(rules["gdn"], model, None, 99)
        with FlopCounterMode(display=False) as counter:
            net(torch.zeros(1, 6, dtype=torch.int64))
        mamba, griffin = model.mamba.sizes(WIDTH), model.griffin.sizes(WIDTH, 2)
        own = mamba.channels * (6 * mamba.state + 3) if entry == "mamba" else 2 * griffin.channels
        assert 6 * (net.flops_per_token(6) - 2 * own) == pytest.approx(counter.get_total_flops())


def test_sizes_are_the_published_ones_and_scale() -> None:
    assert Mamba().sizes(768) == MambaSizes(1536, 16, 48, 4)
    assert Griffin().sizes(2560, 10) == GriffinSizes(2560, 10, 4)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: Mamba(state=0), ConfigError, "mamba.state must be >= 1; got 0"),
        (lambda: Griffin(blocks=3).sizes(16, 2), ConfigError, "griffin needs channels that its blocks divide; got"),
        (lambda: made("mamba")(tokens(), cache=made("mamba").init_cache(3)), OperandError, "the cache must hold 2"),
        (
            lambda: made("mamba")(tokens(), cache=Attention(WIDTH, 2).init_cache(2)),
            OperandError,
            "cache must come from init_cache(2); got TokenCache",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith(message)
