"""The scans of vectors: their three forms agree, in values and gradients, however the sequence is given."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from archsearch.dsl import Rule, decay, gate, key, log_decay, query, read, value, write
from archsearch.errors import BackendError, OperandError
from archsearch.kernels.dispatch import compile
from archsearch.kernels.scan.calls import Scanned, scan, selective_scan
from archsearch.kernels.scan.token_loop import scan_step, selective_step

OFFSETS = torch.tensor([0, 4, 4, 5, 14, 14])
LENGTHS = [0, 1, 2, 3, 4, 5, 8, 9, 31]


def drawn(kind: str, batch: int, tokens: int, *, channels: int = 3, numbers: int = 2) -> dict[str, Tensor]:
    """Float64; hard decays: 0, -1e-4, -5, -50."""
    torch.manual_seed(tokens)
    choice = torch.tensor([0.0, -1e-4, -0.3, -5.0, -50.0], dtype=torch.float64)
    v = torch.randn(batch, tokens, channels, dtype=torch.float64)
    if kind == "scan":
        return {"g": choice[torch.randint(5, v.shape)], "v": v}
    q, k = (torch.randn(batch, tokens, numbers, dtype=torch.float64) for _ in range(2))
    dt = torch.nn.functional.softplus(torch.randn_like(v))
    return {"q": q, "k": k, "v": v, "dt": dt, "rates": choice[torch.randint(1, 4, (channels, numbers))]}


def called(kind: str, tensors: Any, **others: Any) -> Scanned:
    return scan(**tensors, **others) if kind == "scan" else selective_scan(**tensors, **others)


def first_state(kind: str, tensors: dict[str, Tensor], sequences: int) -> Tensor:
    shape = tensors["v"].shape[2:] if kind == "scan" else tensors["rates"].shape
    return torch.randn(sequences, *shape, dtype=torch.float64)


def everything(kind: str, tensors: dict[str, Tensor], state: Tensor, **others: Any) -> list[Tensor]:
    """Output, state, and all gradients of one loss."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in {**tensors, "initial_state": state}.items()}
    start = leaves.pop("initial_state")
    result = called(kind, leaves, initial_state=start, **others)
    generator = torch.Generator().manual_seed(1)
    slopes = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in result]
    loss = sum(
        ((x * slope).sum() for x, slope in zip(result, slopes, strict=True)), torch.zeros((), device=state.device)
    )
    gradients = torch.autograd.grad(loss, [*leaves.values(), start], allow_unused=True, materialize_grads=True)
    return [*(x.detach() for x in result), *gradients]


def near(found: Sequence[Tensor], expected: Sequence[Tensor], bound: float = 1e-11) -> None:
    for a, b in zip(found, expected, strict=True):
        limit = bound * max(1.0, float(b.abs().max())) if b.numel() else 0.0
        torch.testing.assert_close(a.double().cpu(), b.double().cpu(), rtol=0, atol=limit)


@pytest.mark.parametrize("kind", ["scan", "selective"])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_blocks_equal_the_token_loop_with_every_gradient(kind: str, tokens: int) -> None:
    tensors = drawn(kind, 2, tokens)
    state = first_state(kind, tensors, 2)
    found, expected = (everything(kind, tensors, state, backend=backend) for backend in ("torch", "reference"))
    near(found, expected)


@pytest.mark.parametrize("kind", ["scan", "selective"])
def test_the_token_loop_is_the_recurrence(kind: str) -> None:
    """Numbers by hand: one channel, two tokens, one number a state."""
    log = torch.tensor(0.5, dtype=torch.float64).log()
    if kind == "scan":
        tensors = {"g": log.expand(1, 2, 1), "v": torch.tensor([[[3.0], [5.0]]], dtype=torch.float64)}
        expected, start = [0.5 * 8 + 3, 0.5 * 7 + 5], torch.full((1, 1), 8.0, dtype=torch.float64)
    else:
        v, dt = torch.tensor([[[[3.0], [5.0]]], [[[2.0], [1.0]]]], dtype=torch.float64)
        q, k = torch.tensor([[[[7.0], [2.0]]], [[[10.0], [1.0]]]], dtype=torch.float64)
        tensors, start = (
            {"q": q, "k": k, "v": v, "dt": dt, "rates": log.view(1, 1)},
            torch.full((1, 1, 1), 8.0).double(),
        )
        first = 0.25 * 8 + 2 * 3 * 10
        expected = [7 * first, 2 * (0.5 * first + 5)]
    for backend in ("reference", "torch"):
        found = called(kind, tensors, initial_state=start, backend=backend).output
        assert found.flatten().tolist() == pytest.approx(expected)


def test_they_are_rules_with_a_head_a_channel_and_one_value() -> None:
    q, k, v, g, dt = query("q"), key("k"), value("v"), log_decay("g", per="channel"), gate("dt")
    rule = compile(Rule("s6", decay(g), write(k, v, strength=dt), read(q, scale=1.0)), "reference")
    given = drawn("selective", 2, 9)
    spread = {"q": given["q"], "k": given["k"]}
    found = rule(
        **{name: x[:, :, None].expand(-1, -1, 3, -1) for name, x in spread.items()},  # type: ignore[arg-type]
        v=given["v"][..., None],
        dt=given["dt"],
        g=given["dt"][..., None] * given["rates"],
    )
    own = called("selective", given)
    near([own.output, own.state], [found.output[..., 0], found.state[..., 0]])


@pytest.mark.parametrize("kind", ["scan", "selective"])
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_packed_equals_separate_with_every_gradient(kind: str, backend: str) -> None:
    tensors = drawn(kind, 1, 14)
    state = first_state(kind, tensors, 5)
    found = everything(kind, tensors, state, backend=backend, cu_seqlens=OFFSETS)
    near(found, everything(kind, tensors, state, backend="reference", cu_seqlens=OFFSETS))
    for n, (a, b) in enumerate(zip(OFFSETS.tolist(), OFFSETS.tolist()[1:], strict=False)):
        part = {name: x if name == "rates" else x[:, a:b] for name, x in tensors.items()}
        alone = called(kind, part, initial_state=state[n : n + 1], backend="reference")
        near([found[0][:, a:b], found[1][n : n + 1]], alone)


@pytest.mark.parametrize("kind", ["scan", "selective"])
def test_pieces_and_steps_equal_the_whole(kind: str) -> None:
    tensors = drawn(kind, 2, 31)
    whole = called(kind, tensors)
    state, outputs = None, list[Tensor]()
    for a, b in ((0, 7), (7, 8), (8, 31)):
        part = {name: x if name == "rates" else x[:, a:b] for name, x in tensors.items()}
        piece = called(kind, part, initial_state=state)
        state = piece.state
        outputs.append(piece.output)
    assert state is not None
    near([torch.cat(outputs, 1), state], whole)
    state = torch.zeros_like(whole.state)
    for t in range(31):
        token: Any = {name: x if name == "rates" else x[:, t] for name, x in tensors.items()}
        if kind == "scan":
            output = state = scan_step(**token, state=state)
        else:
            output, state = selective_step(**token, state=state)
        near([output], [whole.output[:, t]])


@pytest.mark.parametrize("kind", ["scan", "selective"])
def test_no_token_sees_a_later_one(kind: str) -> None:
    tensors = drawn(kind, 2, 31)
    changed = {name: x.clone() for name, x in tensors.items()}
    for name, x in changed.items():
        if name != "rates":
            x[:, 17:] = x[:, 17:] * 1.5 - 0.1
    before, after = called(kind, tensors).output, called(kind, changed).output
    assert torch.equal(before[:, :17], after[:, :17]) and not torch.allclose(before[:, 17:], after[:, 17:])


@pytest.mark.parametrize("kind", ["scan", "selective"])
def test_gradients_equal_finite_differences(kind: str) -> None:
    tensors = drawn(kind, 1, 7)
    tensors = {
        name: (x.clamp(min=-2.0) if name in ("g", "rates") else x).requires_grad_() for name, x in tensors.items()
    }
    state = first_state(kind, tensors, 1).requires_grad_()

    def run(*given: Tensor) -> Any:
        *operands, start = given
        return tuple(called(kind, dict(zip(tensors, operands, strict=True)), initial_state=start, backend="torch"))

    assert torch.autograd.gradcheck(run, [*tensors.values(), state])


@pytest.fixture
def small(interpreted: torch.device, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The kernels in blocks of few tokens and channels: the interpreter goes through a scan number by number."""
    launching = importlib.import_module("archsearch.kernels.scan.launching")
    monkeypatch.setattr(launching, "SCAN", (4, 2))
    monkeypatch.setattr(launching, "SELECTIVE", (4, 8))
    return interpreted


@pytest.mark.parametrize("kind", ["scan", "selective"])
@pytest.mark.parametrize("tokens", [0, 1, 3, 4, 5, 11])
def test_kernels_equal_the_token_loop_with_every_gradient(kind: str, tokens: int, small: torch.device) -> None:
    tensors = drawn(kind, 2, tokens, numbers=3)
    state = first_state(kind, tensors, 2)
    expected = everything(kind, tensors, state, backend="reference")
    single = {name: x.float().to(small) for name, x in tensors.items()}
    near(everything(kind, single, state.float().to(small), backend="triton"), expected, 2e-6)


@pytest.mark.parametrize("kind", ["scan", "selective"])
def test_kernels_take_packed_sequences(kind: str, small: torch.device) -> None:
    tensors = drawn(kind, 1, 14)
    state = first_state(kind, tensors, 5)
    expected = everything(kind, tensors, state, backend="reference", cu_seqlens=OFFSETS)
    single = {name: x.float().to(small) for name, x in tensors.items()}
    found = everything(kind, single, state.float().to(small), backend="triton", cu_seqlens=OFFSETS.to(small))
    near(found, expected, 2e-6)


def test_what_does_not_fit_is_refused() -> None:
    g, v = torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)
    with pytest.raises(OperandError, match=r"g must have shape \[2, 3, 4\] on cpu; got \[2, 3, 5\]"):
        scan(torch.zeros(2, 3, 5), v)
    with pytest.raises(OperandError, match=r"the state must have shape \[2, 4\]"):
        scan(g, v, initial_state=torch.zeros(3, 4))
    with pytest.raises(OperandError, match="cu_seqlens packs sequences along T with B = 1; got B = 2"):
        scan(g, v, cu_seqlens=torch.tensor([0, 3]))
    with pytest.raises(BackendError, match="backend must be one of auto, reference, torch, triton; got 'cuda'"):
        scan(g, v, backend="cuda")  # type: ignore[arg-type]
    with pytest.raises(OperandError, match='backend "triton" takes no float64'):
        scan(g.double(), v, backend="triton")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["scan", "selective"])
@pytest.mark.parametrize("packed", [False, True])
def test_kernels_at_their_own_sizes_equal_the_blocks(kind: str, packed: bool) -> None:
    tensors = drawn(kind, 1 if packed else 3, 1000, channels=100, numbers=16)
    offsets = torch.tensor([0, 33, 33, 700, 1000]) if packed else None
    state = first_state(kind, tensors, 4 if packed else 3)
    expected = everything(kind, tensors, state, backend="torch", cu_seqlens=offsets)
    single = {name: x.float().cuda() for name, x in tensors.items()}
    given = None if offsets is None else offsets.cuda()
    found = everything(kind, single, state.float().cuda(), backend="triton", cu_seqlens=given)
    near(found, expected, 1e-5)
    again = everything(kind, single, state.float().cuda(), backend="triton", cu_seqlens=given)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
