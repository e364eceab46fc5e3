"""The kernels around a rule against torch's own functions, values and gradients."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE).requires_grad_()


def same(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *given: Tensor | None) -> None:
    one, other = ours(*given), theirs(*given)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    slope = torch.randn(other.shape, generator=torch.Generator().manual_seed(7)).to(DEVICE)
    tensors = [each for each in given if each is not None]
    pairs = zip(torch.autograd.grad(one, tensors, slope), torch.autograd.grad(other, tensors, slope), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("tokens", "channels", "taps", "biased"), [(40, 70, 4, True), (5, 16, 3, False)])
def test_a_convolution_is_that_of_torch_for_each_replica(tokens: int, channels: int, taps: int, biased: bool) -> None:
    from archsearch.kernels.rowwise import calls

    sizes = (channels // 2, channels - channels // 2)

    def ours(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        wide = torch.cat([x, x], 3)[..., :channels]  # rows of a wider tensor
        return torch.cat(calls.convolution(wide, weight, bias, sizes), 3)

    def theirs(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        each = [
            F.conv1d(
                F.pad(x[r].mT, (taps - 1, 0)), weight[r][:, None], None if bias is None else bias[r], groups=channels
            )
            for r in range(len(x))
        ]
        return torch.stack(each).permute(1, 3, 0, 2)

    given = (drawn(2, 3, tokens, channels), drawn(2, channels, taps), drawn(2, channels) if biased else None)
    same(ours, theirs, *given)


@pytest.mark.parametrize(("rows", "words"), [(6, 50), (3, 5000)])
def test_a_loss_is_that_of_torch_and_none_without_an_answer(rows: int, words: int) -> None:
    from archsearch.kernels.rowwise import calls

    answers = (torch.arange(rows) * 7 % words).to(DEVICE)
    answers[1] = calls.IGNORED
    same(
        lambda logits: calls.cross_entropy(logits, answers),
        lambda logits: F.cross_entropy(logits, answers, ignore_index=calls.IGNORED, reduction="none"),
        drawn(rows, words),
    )


@pytest.mark.parametrize("kind", ["swish", "sigmoid", "none"])
@pytest.mark.parametrize("width", [16, 24])
def test_a_gated_norm_is_a_norm_and_a_gate(kind: str, width: int) -> None:
    from archsearch.kernels.rowwise import calls

    curve = {"swish": F.silu, "sigmoid": torch.sigmoid}
    gate = None if kind == "none" else drawn(3, 5, 2, width)

    def theirs(o: Tensor, weight: Tensor, gate: Tensor | None = None) -> Tensor:
        normal = F.rms_norm(o, (width,), None, 1e-5) * weight[:, None, None]
        return normal if gate is None else normal * curve[kind](gate)

    same(
        lambda o, weight, gate=None: calls.gated_norm(o, gate, weight, 1e-5, kind, o.dtype),  # pyright: ignore[reportArgumentType]
        theirs,
        drawn(3, 5, 2, width),
        drawn(3, width),
        gate,
    )
