"""`archsearch check` on the layers of a pattern: they pass, and a layer with a fault in it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from archsearch.cli import app
from archsearch.errors import ConfigError
from archsearch.kernels.ladder import Status
from archsearch.kernels.scan import calls
from archsearch.mixers.layer import attention
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.mixers.models.partner_counts import PARTNERS
from archsearch.mixers.partner_check import check_layer, ladder
from archsearch.mixers.zoo import rules


@pytest.mark.parametrize("kind", PARTNERS)
def test_every_layer_passes(kind: Any) -> None:
    lines = list(ladder(kind))
    assert all(line.status is not Status.FAILED for line in lines), lines
    assert [line.row for line in lines] == ([1, 2, 3, 4, 5, 6, 6] if kind in ("mamba", "griffin") else [1, 4, 5, 6, 6])


def failed(kind: Any) -> set[int]:
    return {line.row for line in ladder(kind) if line.status is Status.FAILED}


def test_a_look_ahead_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
        scores = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        return torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)

    monkeypatch.setattr(attention, "attended", everything)
    assert failed("attention") == {5, 6}


def test_a_wrong_form_and_a_lost_state_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = calls.blocked.blocked_scan

    def late(g: Tensor, v: Tensor, state: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
        return right(g, v, torch.zeros_like(state), cu_seqlens)

    monkeypatch.setattr(calls.blocked, "blocked_scan", late)
    assert failed("griffin") == {6}
    monkeypatch.setattr(calls.blocked, "blocked_scan", lambda g, v, s, c: right(0.9 * g, v, s, c))  # type: ignore[no-untyped-call]
    assert failed("griffin") == {2, 6}


def test_the_command_prints_a_line_a_row_or_json() -> None:
    shown = CliRunner().invoke(app, ["check", "mla"])
    assert shown.exit_code == 0 and shown.output.count("passed") == 6
    assert shown.output.endswith("\nmla passes: 5 passed, 0 failed, 0 not run\n")
    plain = json.loads(CliRunner().invoke(app, ["check", "window", "--json"]).output)
    assert plain["passed"] and plain["name"] == "window" and len(plain["rows"]) == 5
    assert all(row["error"] <= row["bound"] for row in plain["rows"])


def test_a_backend_that_a_layer_has_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"layer 'mla' has one form, in PyTorch; got backend 'triton'. Use \"auto\""):
        check_layer("mla", backend="triton", json=True)


# torch's compiler makes an instance of a function of autograd, which torch deprecates
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("kind", ["window", "mla", "mamba", "griffin"])
def test_a_layer_compiles_to_one_graph(kind: Any) -> None:
    model = Model(width=32, heads=2, layers=1, pattern=(kind,), window=5)
    net, tokens = LanguageModel(rules["linear"], model, None, 16), torch.randint(16, (2, 24))
    gradients: list[Tensor] = []
    outputs: list[Tensor] = []
    for given in (net, torch.compile(net, fullgraph=True, backend="aot_eager")):
        net.zero_grad()
        outputs.append(given(tokens))
        outputs[-1].sin().sum().backward()
        assert net.embedding.weight.grad is not None
        gradients.append(net.embedding.weight.grad.clone())
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", PARTNERS)
def test_under_autocast_a_layer_gives_almost_the_same_and_warns_of_nothing(kind: Any) -> None:
    model = Model(width=32, heads=2, layers=2, pattern=(kind,), window=5)
    net, tokens = LanguageModel(rules["linear"], model, None, 16), torch.randint(16, (2, 24))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = net(tokens)
        near.square().mean().backward()
        cache = net.init_cache(2)
        pieces = torch.cat([net(tokens[:, :9], cache), net(tokens[:, 9:10], cache), net(tokens[:, 10:], cache)], 1)
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, net(tokens), rtol=0, atol=2e-2 * float(near.detach().abs().max()))
    torch.testing.assert_close(pieces, near, rtol=0, atol=2e-2 * float(near.detach().abs().max()))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
