"""Attention in its three kinds: equal to the papers' formulas, the same however a sequence is cut, packed or padded."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from archsearch.errors import ConfigError, OperandError
from archsearch.mixers.layer import attending
from archsearch.mixers.layer.attending import attended
from archsearch.mixers.layer.attention import Attention, TokenMixer
from archsearch.mixers.layer.latent_attention import LatentAttention
from archsearch.mixers.layer.partner_options import Latent, LatentSizes
from archsearch.mixers.layer.rotary import rotated
from archsearch.mixers.models import counts
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.mixers.zoo import rules

WIDTH, HEADS, WINDOW = 32, 4, 5
SIZES = {"mla": Latent().sizes(WIDTH, HEADS), "mla, low-rank queries": Latent(7, 6, 4, 10, 9).sizes(WIDTH, HEADS)}
KINDS = ("attention", "window", *SIZES)


def made(kind: str) -> Any:
    """Far from its start, so that attention is sharp."""
    torch.manual_seed(3)
    if kind in SIZES:
        mixer: TokenMixer = LatentAttention(WIDTH, SIZES[kind])
    else:
        mixer = Attention(WIDTH, HEADS, WINDOW if kind == "window" else None)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return mixer.double()


def tokens(batch: int = 2, length: int = 23) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64)


def turned(vector: Tensor, place: int) -> Tensor:
    """Pairs (i, i + D/2) of the last dimension as complex numbers times exp(i place base^(-2i/D)) (2104.09864)."""
    half = vector.shape[-1] // 2
    pairs = torch.complex(vector[..., :half], vector[..., half:])
    angles = place * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], -1)


def softmax_loop(mixer: Attention, x: Tensor) -> Tensor:
    """Token by token: o = sum_j softmax_j(q . k_j / sqrt(D)) v_j over j <= t, with a window over t - W < j <= t."""
    rows: list[Tensor] = []
    q, k, v = (x @ w.T for w in mixer.projection.chunk(3))
    dim = WIDTH // HEADS
    for t in range(x.shape[1]):
        first = 0 if mixer.window is None else max(0, t - mixer.window + 1)
        heads: list[Tensor] = []
        for h in range(HEADS):
            part = slice(h * dim, (h + 1) * dim)
            scores = [(turned(q[:, t, part], t) * turned(k[:, j, part], j)).sum(-1) for j in range(first, t + 1)]
            weights = (torch.stack(scores, -1) / dim**0.5).softmax(-1)
            heads.append((weights[..., None] * v[:, first : t + 1, part]).sum(1))
        rows.append(torch.cat(heads, -1) @ mixer.output.T)
    return torch.stack(rows, 1)


def latent_loop(mixer: LatentAttention, x: Tensor) -> Tensor:
    """2405.04434, Eqs. 9-19, token by token and head by head."""
    s = mixer.sizes

    def normed(y: Tensor, weight: Tensor) -> Tensor:
        return y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    rows: list[Tensor] = []
    wide = s.query_rank or s.queries
    w_q, w_c, w_r = mixer.projection[:wide], mixer.projection[wide : wide + s.rank], mixer.projection[wide + s.rank :]
    latent, shared, q = normed(x @ w_c.T, mixer.norm.weight), x @ w_r.T, x @ w_q.T
    if mixer.query_norm is not None and mixer.queries is not None:
        q = normed(q, mixer.query_norm.weight) @ mixer.queries.T
    for t in range(x.shape[1]):
        heads: list[Tensor] = []
        for h in range(s.heads):
            own = q[:, t].unflatten(-1, (s.heads, -1))[:, h]
            query = torch.cat([own[:, : s.content], turned(own[:, s.content :], t)], -1)
            scores: list[Tensor] = []
            for j in range(t + 1):
                key = torch.cat([latent[:, j] @ mixer.keys[h].T, turned(shared[:, j], j)], -1)
                scores.append((query * key).sum(-1) / (s.content + s.rotary) ** 0.5)
            weights = torch.stack(scores, -1).softmax(-1)
            heads.append((weights[..., None] * (latent[:, : t + 1] @ mixer.values[h].T)).sum(1))
        rows.append(torch.cat(heads, -1) @ mixer.output.T)
    return torch.stack(rows, 1)


def loop(mixer: Any, x: Tensor) -> Tensor:
    return latent_loop(mixer, x) if isinstance(mixer, LatentAttention) else softmax_loop(mixer, x)


def near(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_papers_formula_and_so_are_its_gradients(kind: str) -> None:
    mixer, x = made(kind), tokens().requires_grad_()
    given = [x, *mixer.parameters()]
    weights = torch.randn(2, 23, WIDTH, dtype=torch.float64)
    found, expected = mixer(x), loop(mixer, x)
    near(found, expected)
    for a, b in zip(
        torch.autograd.grad((found * weights).sum(), given),
        torch.autograd.grad((expected * weights).sum(), given),
        strict=True,
    ):
        near(a, b)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", [range(24), [0, 1, 1, 4, 15, 16, 23], [0, 12, 23], [0, 23]])
@torch.no_grad()
def test_pieces_of_any_length_equal_the_whole(kind: str, cuts: Any) -> None:
    mixer, x = made(kind), tokens()
    cache = mixer.init_cache(2)
    near(torch.cat([mixer(x[:, a:b], cache=cache) for a, b in pairwise(cuts)], 1), mixer(x))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_piece_that_looks_back_in_parts_equals_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attending, "QUERIES", 4)
    test_pieces_of_any_length_equal_the_whole(kind, [0, 0, 3, 12, 23])
    test_packed_pieces_of_different_lengths_go_on_from_one_cache(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [(4, 0, 1, 17), (0, 3, 3, 30, 2, 31, 0), (1, 1), (0,)])
def test_packed_sequences_and_their_gradients_equal_separate_ones(kind: str, lengths: tuple[int, ...]) -> None:
    mixer, parts = made(kind), [tokens(1, length) for length in lengths]
    for offsets in (torch.tensor([0, *lengths]).cumsum(0), torch.tensor([0, *lengths]).cumsum(0).int()):
        whole = torch.cat(parts, 1).requires_grad_()
        weights = torch.randn_like(whole)
        found = mixer(whole, cu_seqlens=offsets)
        expected = torch.cat([mixer(part) for part in whole.split(lengths, 1)], 1)
        near(found, expected)
        gradients = [torch.autograd.grad((y * weights).sum(), [whole, *mixer.parameters()]) for y in (found, expected)]
        for a, b in zip(*gradients, strict=True):
            near(a, b)


@torch.no_grad()
def test_a_broken_number_stays_in_its_sequence() -> None:
    for kind in KINDS:
        mixer, x = made(kind), tokens(1, 24)
        x[:, 9] = torch.nan
        broken = mixer(x, cu_seqlens=torch.tensor([0, 4, 9, 16, 19, 24])).isnan().any(-1)[0]
        assert broken[9] and not broken[:9].any() and not broken[16:].any()


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(made) if isinstance(x, Tensor)]
        self.elements = max([self.elements, *sizes])
        return made


def largest(work: Callable[[], object]) -> int:
    with Largest() as mode:
        work()
    return mode.elements


@pytest.mark.parametrize("kind", ["attention", "window", "mla, low-rank queries"])
@torch.no_grad()
def test_what_packed_sequences_and_long_pieces_need_grows_with_their_tokens_alone(kind: str) -> None:
    """A mask of T x T would be four times as large at twice as many tokens. (torch's kernel on a CPU makes all scores
    where keys are wider than values, as they are by default in mla.)"""
    mixer, window = made(kind).float(), 8 if kind == "window" else None
    if window is not None:
        mixer.window = window

    def packed(count: int) -> int:
        lengths = torch.tensor([0, 300, 5, *[70] * count])
        x = torch.randn(1, int(lengths.sum()), WIDTH)
        return largest(lambda: mixer(x, cu_seqlens=lengths.cumsum(0)))

    def started(length: int) -> int:
        x, lengths = torch.randn(1, length + 3, WIDTH), torch.tensor([0, length, 3])
        return largest(lambda: mixer(x, cache=mixer.init_cache(2), cu_seqlens=lengths.cumsum(0)))

    def going_on(length: int) -> int:
        cache = mixer.init_cache(1)
        mixer(torch.randn(1, 1, WIDTH), cache=cache)
        return largest(lambda: mixer(torch.randn(1, length, WIDTH), cache=cache))

    for work, size in ((packed, 20), (started, 1500), (going_on, 1500)):
        assert work(2 * size) < 2.2 * work(size), work.__name__


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_packed_pieces_of_different_lengths_go_on_from_one_cache(kind: str) -> None:
    mixer, wholes = made(kind), [tokens(1, length) for length in (9, 3, 21)]
    cache, seen, found = mixer.init_cache(3), [0, 0, 0], [[], [], []]  # type: ignore[var-annotated]
    for lengths in ([4, 0, 12], [1, 1, 1], [0, 0, 7], [3, 1, 0], [1, 1, 1]):
        parts = [whole[:, a : a + n] for whole, a, n in zip(wholes, seen, lengths, strict=True)]
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        out = mixer(torch.cat(parts, 1), cache=cache, cu_seqlens=offsets)
        for i, (a, b) in enumerate(pairwise(offsets.tolist())):
            found[i].append(out[:, a:b])
        seen = [a + n for a, n in zip(seen, lengths, strict=True)]
    assert seen == cache.seen.tolist() == [9, 3, 21]
    for whole, pieces in zip(wholes, found, strict=True):
        near(torch.cat(pieces, 1), mixer(whole))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_batch_goes_on_token_by_token_after_a_ragged_start(kind: str) -> None:
    mixer, wholes, lengths = made(kind), tokens(3, 20), [2, 9, 5]
    starts = [whole[:n] for whole, n in zip(wholes, lengths, strict=True)]
    cache = mixer.init_cache(3)
    mixer(torch.cat(starts)[None], cache=cache, cu_seqlens=torch.tensor([0, *lengths]).cumsum(0))
    expected = mixer(wholes)
    for step in range(11):
        places = torch.tensor(lengths) + step
        rows = torch.arange(3)
        near(mixer(wholes[rows, places][:, None], cache=cache)[:, 0], expected[rows, places])
    assert cache.present is None if kind == "window" else cache.present is not None


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_past_does_not_depend_on_the_future_nor_a_window_on_what_left_it(kind: str) -> None:
    mixer, x = made(kind), tokens()
    later, earlier = x.clone(), x.clone()
    later[:, 14:] += 1
    earlier[:, :6] += 1
    assert torch.equal(mixer(later)[:, :14], mixer(x)[:, :14])
    assert not torch.allclose(mixer(later)[:, 14], mixer(x)[:, 14])
    untouched = torch.isclose(mixer(earlier), mixer(x)).all(-1)[0]
    assert untouched.tolist() == ([False] * 10 + [True] * 13 if kind == "window" else [False] * 23)


@pytest.mark.parametrize("tail", [0, 1, WINDOW - 1])
@torch.no_grad()
def test_a_window_by_blocks_equals_one_mask(tail: int) -> None:
    length = 3 * WINDOW + tail
    q, k, v = (torch.randn(2, length, HEADS, 6, dtype=torch.float64) for _ in range(3))
    seen = torch.ones(length, length).tril().triu(1 - WINDOW).bool()
    weights = (torch.einsum("bthd,bshd->bhts", q, k) / 6**0.5).masked_fill(~seen, float("-inf")).softmax(-1)
    near(attended(q, k, v, window=WINDOW), torch.einsum("bhts,bshd->bthd", weights, v))


@pytest.mark.parametrize("entry", ["attention", "window", "mla"])
@torch.no_grad()
def test_a_cache_holds_the_window_the_latent_or_all_keys_and_values(entry: Any) -> None:
    model = Model(WIDTH, HEADS, 1, (entry,), mlp_ratio=0, window=WINDOW)
    mixer = made(entry).float()
    cache = mixer.init_cache(2)
    for length in range(1, 9):
        mixer(tokens(2, 1).float(), cache=cache)
        assert cache.nbytes == 2 * counts.state_bytes(rules["gdn"], model, None, length)
    kept = {"attention": 8 * 2 * WIDTH, "window": (WINDOW - 1) * 2 * WIDTH, "mla": 8 * (16 + 4)}[entry]
    assert cache.nbytes == 2 * 4 * kept


def test_latent_sizes_are_the_published_ones_at_a_head_of_128_and_scale_with_it() -> None:
    assert Latent().sizes(5120, 40) == LatentSizes(40, 512, 128, 64, 128, 0)
    assert Latent().sizes(64, 2) == LatentSizes(2, 32, 32, 16, 32, 0)
    assert Latent(rotary=6, query_rank=9).sizes(64, 8) == LatentSizes(8, 32, 8, 6, 8, 9)


@pytest.mark.parametrize("latent", [Latent(), Latent(7, 6, 4, 10, 9)])
@pytest.mark.parametrize("entry", ["attention", "window", "mla"])
@torch.no_grad()
def test_counted_products_are_those_of_a_pass(entry: Any, latent: Latent) -> None:
    """torch counts the products of tokens with tokens as the squares and blocks that they are made in."""
    model = Model(WIDTH, HEADS, 1, (entry,), mlp_ratio=0, window=WINDOW, latent=latent)
    net = LanguageModel(rules["gdn"], model, None, 7)
    assert net.parameter_count == counts.parameters(rules["gdn"], model, None, 7)
    sizes, length = latent.sizes(WIDTH, HEADS), 12
    channels = sizes.content + sizes.rotary + sizes.value if entry == "mla" else 2 * WIDTH // HEADS
    pairs = sum(min(t + 1, WINDOW) if entry == "window" else t + 1 for t in range(length))
    made_of = 3 * WINDOW * 2 * WINDOW if entry == "window" else length * length
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        net(torch.zeros(1, length, dtype=torch.int64))
    products = counter.get_total_flops() - 2 * HEADS * channels * (made_of - pairs)
    assert length * net.flops_per_token(length) == pytest.approx(products)


@torch.no_grad()
def test_a_step_of_latent_attention_makes_no_key_of_an_earlier_token() -> None:
    mixer = made("mla")
    work: list[int] = []
    for length in (10, 20):
        cache = mixer.init_cache(1)
        mixer(tokens(1, length), cache=cache)
        with FlopCounterMode(display=False) as counter:
            mixer(tokens(1, 1), cache=cache)
        work.append(counter.get_total_flops())
    assert work[1] - work[0] <= 10 * 2 * HEADS * (2 * 16 + 4)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: Attention(30, 2), ConfigError, "attention needs heads of even width; got width=30, heads=2"),
        (lambda: Attention(32, 2, 0), ConfigError, "attention needs a window of at least one token; got window=0"),
        (lambda: Model(window=0), ConfigError, "model.window must be >= 1; got 0"),
        (lambda: Latent(rank=0), ConfigError, "latent.rank must be a whole number >= 1; got 0"),
        (lambda: Latent(rotary=3).sizes(32, 2), ConfigError, "latent.rotary must be even"),
        (lambda: Latent().sizes(30, 4), ConfigError, "mla needs a width that its heads divide; got width=30, heads=4"),
        (
            lambda: made("mla")(tokens(), cache=made("mla").init_cache(3)),
            OperandError,
            "the cache must hold 2 sequences; got 3. Use init_cache(2)",
        ),
        (
            lambda: made("mla")(tokens(), cache=made("attention").init_cache(2)),
            OperandError,
            "the cache holds [[4, 8], [4, 8]] a token; this layer needs [[16], [4]]. Use its own init_cache(2)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_rotation_is_that_of_the_pairs() -> None:
    x = torch.randn(1, 4, 2, 6, dtype=torch.float64)
    near(rotated(x, torch.arange(4)[None]), torch.stack([turned(x[:, t], t) for t in range(4)], 1))
