"""The mixer on a CUDA device: the generated kernels under bfloat16 autocast, decoding, and one graph when compiled."""

import copy

import pytest
import torch
from torch import Tensor, nn

from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.mixers.zoo import rules

pytestmark = pytest.mark.gpu

WIDTH, HEADS = 256, 4
TOLERANCE = 2e-2
"""Relative, of a whole tensor in bfloat16: twice the bound of a kernel's gate gradients would be 0.04."""


def error(found: Tensor, expected: Tensor) -> float:
    one, other = found.detach().cpu().double(), expected.detach().double()
    return float((one - other).norm() / other.norm())


def defined(mixer: Mixer, x: Tensor, expected: Tensor) -> Tensor:
    """[B, T]: whether a token's output is defined in bfloat16: no kernel is asked where rounding alone moves it far.

    A Mamba-3 token that reads nearly -D v is what is left beside its skip, 1/30 of the others' size; its norm makes it
    as long as they are, and its gradient thirty times theirs.
    """
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = copy.deepcopy(mixer).float()(x)
    kept = (rounded - expected).norm(dim=-1) < 2 * TOLERANCE * expected.norm(dim=-1)
    assert kept.double().mean() > 0.98
    return kept


@pytest.mark.parametrize("name", rules)
def test_bfloat16_kernels_agree_with_float64_on_the_cpu(name: str) -> None:
    exact = Mixer(rules[name], WIDTH, HEADS, backend="torch").double()
    fast = copy.deepcopy(exact).float().cuda()
    fast.compiled = Mixer(rules[name], WIDTH, HEADS, backend="triton").compiled
    x = torch.randn(2, 150, WIDTH)
    expected = exact(x.double())
    kept = defined(exact, x, expected.detach())
    expected[kept].square().sum().backward()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = fast(x.cuda())
    found[kept.to(found.device)].float().square().sum().backward()
    assert error(found, expected) < TOLERANCE
    for (path, a), (_, b) in zip(fast.named_parameters(), exact.named_parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        assert error(a.grad, b.grad) < 3 * TOLERANCE, path


@pytest.mark.parametrize("name", rules)
@torch.no_grad()
def test_pieces_and_packed_sequences_equal_the_whole(name: str) -> None:
    mixer, x = Mixer(rules[name], WIDTH, HEADS).cuda(), torch.randn(2, 150, WIDTH).cuda()
    whole, cache = mixer(x), mixer.init_cache(2)
    pieces = torch.cat([mixer(x[:, a:b], cache=cache) for a, b in ((0, 77), (77, 78), (78, 79), (79, 150))], 1)
    packed = mixer(x.reshape(1, 300, WIDTH), cu_seqlens=torch.tensor([0, 150, 150, 300], device="cuda"))
    assert error(pieces, whole.cpu()) < 2e-3
    assert error(packed.view_as(whole), whole.cpu()) < 2e-3


@pytest.mark.parametrize("name", ["gated_delta_net", "eda"])
def test_a_language_model_compiles_to_one_graph(name: str) -> None:
    model = Model(width=WIDTH, heads=HEADS, layers=3, pattern=("conv", "rule", "attention"))
    net = LanguageModel(rules[name], model, None, 64).cuda()
    tokens = torch.randint(64, (2, 130), device="cuda")
    results: list[tuple[Tensor, Tensor]] = []
    for given in (net, torch.compile(net, fullgraph=True)):
        net.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(given(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        gradient = net.get_parameter("blocks.1.mixer.projection").grad
        assert gradient is not None
        results.append((loss.detach().cpu(), gradient.cpu()))
    (loss, gradient), compiled = results
    assert error(compiled[0], loss) < TOLERANCE and error(compiled[1], gradient) < 3 * TOLERANCE
