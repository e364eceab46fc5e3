"""The chunkwise form in PyTorch (the algebra is exact; differentiable by autograd).

A chunk holds C tokens and n C rows, n the rows of a token, row i = (token, substep). With G the log decay accumulated
since the chunk's start at a row's place, S0 the state that enters and S1 the one that leaves:

    L = mask o (A B^T o exp(Ga - Gb))    D = (I + L)^-1 (U - (A exp(Ga)) S0)
    O = (Q exp(Gq)) S0 + P D             P = mask o (Q B^T o exp(Gq - Gb))
    S1 = exp(G_C) S0 + (B exp(G_C - Gb))^T D

Wherever a mask is 1 the exponent is <= 0, and no other exponential is formed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

from archsearch.kernels.call import Call, Result
from archsearch.kernels.operands import evaluate, log_decay, sign, spread, strongest
from archsearch.kernels.reference import bonus, initial
from archsearch.lowering import NormalForm


def default_chunk(form: NormalForm) -> int:
    """Tokens a chunk: 32 rows, at least 8 tokens (measured best on a CPU at K = V = 32)."""
    return max(8, 32 // max(1, len(form.rows)))


Pairs = Callable[[Tensor], Tensor]
"""What becomes of L before it is solved."""


def _exact(lower: Tensor) -> Tensor:
    return lower


def run(form: NormalForm, call: Call, chunk_size: int | None, *, pairs: Pairs = _exact) -> Result:
    """All chunks of all sequences. `pairs` is for whoever asks what rounding L would do."""
    chunk = chunk_size or default_chunk(form)
    tensors = spread(form, call)
    if call.cu_seqlens is None:
        return _sequence(form, call, tensors, initial(call), chunk, pairs)
    pieces = [{name: x[:, start:end] for name, x in tensors.items()} for start, end in call.spans]
    results = [_sequence(form, call, piece, initial(call)[n : n + 1], chunk, pairs) for n, piece in enumerate(pieces)]
    return Result(
        torch.cat([result.output for result in results], dim=1), torch.cat([result.state for result in results])
    )


@dataclass(frozen=True, slots=True)
class Decays:
    """Log decay since the chunk's start, [B, HV, N, C, 1 or K]: before a token (`entry`), and after each number of its
    decay points; signs alike.
    """

    places: tuple[Tensor, ...]
    signs: tuple[Tensor, ...] | None

    @property
    def whole(self) -> Tensor:
        """After all decay points of the chunk's last token: [B, HV, N, 1, 1 or K]."""
        return self.places[-1][..., -1:, :]

    @property
    def per_channel(self) -> bool:
        """Whether channels decay on their own."""
        return self.whole.shape[-1] > 1


def _sequence(
    form: NormalForm, call: Call, tensors: Mapping[str, Tensor], state: Tensor, chunk: int, pairs: Pairs
) -> Result:
    length = next(iter(tensors.values())).shape[1]
    if length == 0:
        return Result(state.new_zeros((call.batch, 0, call.value_heads, call.value_dim)).to(call.output_dtype), state)
    chunk = min(chunk, length)
    chunked = {name: _chunked(x, chunk) for name, x in tensors.items()}
    signs = {decay.sign.name for decay in form.decays if decay.sign is not None}
    chunked = {name: torch.where(x == 0, 1.0, x) if name in signs else x for name, x in chunked.items()}
    present = _chunked(state.new_ones((call.batch, length, call.value_heads, 1)), chunk)
    output, state = _chunks(form, call, chunked, present, state, pairs)
    output = output.flatten(2, 3)[:, :, :length].transpose(1, 2)
    return Result(output.to(call.output_dtype), state)


def _chunked(x: Tensor, chunk: int) -> Tensor:
    """[B, T, HV, ...] -> [B, HV, N, C, ...], padded with zeros: an empty token changes nothing."""
    batch, length = x.shape[:2]
    padding = -length % chunk
    if padding:
        x = torch.cat([x, x.new_zeros((batch, padding, *x.shape[2:]))], dim=1)
    return cast(Tensor, x.transpose(1, 2).unflatten(2, (-1, chunk)))


def _chunks(
    form: NormalForm, call: Call, tensors: Mapping[str, Tensor], present: Tensor, state: Tensor, pairs: Pairs
) -> tuple[Tensor, Tensor]:
    """`present` [B, HV, N, C, 1] is 1 at real tokens and 0 at the padding, which must not decay either."""
    decays = _decays(form, tensors, present)
    lead = present.shape[:4]
    a, b, u, ga, gb = _rows(form, call, tensors, decays, lead)
    gq, stages = decays.places[form.read.decays], _order(form, lead[3], present.device)
    q = evaluate(form.read.address, tensors)
    q = present.new_zeros((*lead, call.key_dim)) if q is None else q
    extra = bonus(form.read, tensors, q)
    q = _signed(q, decays, form.read.decays)

    lower = pairs(_gram(a, ga, b, gb, stages.rows, decays, len(form.rows)))
    unit = lower + torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    known = torch.cat([u, a * ga.exp()], dim=-1)
    solved = cast(Tensor, torch.linalg.solve_triangular(unit, known, upper=False, unitriangular=True))
    targets, addresses = solved[..., : call.value_dim], solved[..., call.value_dim :]
    scores = _gram(q, gq, b, gb, stages.reads, decays, len(form.rows))
    leaving = (b * (decays.whole - gb).exp()).transpose(-1, -2)
    factor = decays.whole.exp().transpose(-1, -2)
    flip = None if decays.signs is None else decays.signs[-1][..., -1:, :].transpose(-1, -2)

    entering: list[Tensor] = []
    written: list[Tensor] = []
    for n in range(lead[2]):
        entering.append(state)
        d = targets[:, :, n] - addresses[:, :, n] @ state
        written.append(d)
        state = factor[:, :, n] * state + leaving[:, :, n] @ d
        state = state if flip is None else flip[:, :, n] * state
    output = (q * gq.exp()) @ torch.stack(entering, 2) + scores @ torch.stack(written, 2)
    return (output if extra is None else output + extra) * call.scale, state


def _decays(form: NormalForm, tensors: Mapping[str, Tensor], present: Tensor) -> Decays:
    """Cumulative log decays at every place of a token's program."""
    least = strongest(present.dtype)
    logs = [log_decay(decay.log_decay, tensors, present).clamp(min=least) * present for decay in form.decays]
    zero = torch.zeros_like(present)
    whole = _accumulated(sum(logs, zero))
    after = [whole - sum(logs[i:], zero) for i in range(len(logs))]
    signs = None
    if any(decay.sign is not None for decay in form.decays):
        signs = _signs(form, tensors, torch.ones_like(present))
    return Decays((*after, whole), signs)


def _accumulated(x: Tensor) -> Tensor:
    """Sums over the tokens up to each; one after another on CUDA where torch is asked to repeat its bits, since its own
    sums have no deterministic form there.
    """
    if x.is_cuda and torch.are_deterministic_algorithms_enabled():
        return torch.stack(list(accumulate(x.unbind(3))), dim=3)
    return torch.cumsum(x, dim=3)


def _signs(form: NormalForm, tensors: Mapping[str, Tensor], one: Tensor) -> tuple[Tensor, ...]:
    """Cumulative signs at every place; a sign is its own inverse, so a token's own later signs are multiplied away."""
    signs = [one if decay.sign is None else sign(decay.sign, tensors) for decay in form.decays]
    whole = one
    for each in signs:
        whole = whole * each
    whole = torch.cumprod(whole, dim=3)
    places = [whole]
    for each in reversed(signs):
        places.append(places[-1] * each)
    return tuple(reversed(places))


def _signed(x: Tensor, decays: Decays, place: int) -> Tensor:
    return x if decays.signs is None else x * decays.signs[place]


def _rows(
    form: NormalForm, call: Call, tensors: Mapping[str, Tensor], decays: Decays, lead: torch.Size
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """a, b [.., nC, K], u [.., nC, V] and the log decays at the place where a row reads and where it writes [.., nC, 1
    or K].
    """
    whole = decays.whole
    zero_k = whole.new_zeros((*lead, call.key_dim))
    zero_v = whole.new_zeros((*lead, call.value_dim))
    a, b, u, ga, gb = [], [], [], [], []
    for row in form.rows:
        place = 0 if row.previous else row.decays
        residual, address, target = (evaluate(part, tensors) for part in (row.residual, row.write, row.target))
        a.append(zero_k if residual is None else _signed(residual, decays, place))
        b.append(zero_k if address is None else _signed(address, decays, row.decays))
        u.append(zero_v if target is None else target)
        ga.append(decays.places[place])
        gb.append(decays.places[row.decays])
    return tuple(torch.stack(torch.broadcast_tensors(*part), dim=4).flatten(3, 4) for part in (a, b, u, ga, gb))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Order:
    """Which rows a row sees [nC, nC], and which a read sees [C, nC]."""

    rows: Tensor
    reads: Tensor


def _order(form: NormalForm, chunk: int, device: torch.device) -> Order:
    tokens = torch.arange(chunk, device=device)
    token = tokens.repeat_interleave(len(form.rows))
    stage = torch.tensor([row.stage for row in form.rows], device=device).repeat(chunk)
    previous = torch.tensor([row.previous for row in form.rows], device=device).repeat(chunk)
    earlier = token[:, None] > token[None, :]
    own = (token[:, None] == token[None, :]) & (stage[:, None] > stage[None, :]) & ~previous[:, None]
    read = (tokens[:, None] > token[None, :]) | (
        (tokens[:, None] == token[None, :]) & (stage[None, :] < form.read.stage)
    )
    return Order(earlier | own, read)


def _gram(x: Tensor, gx: Tensor, w: Tensor, gw: Tensor, mask: Tensor, decays: Decays, substeps: int) -> Tensor:
    """mask o sum_c x_i[c] w_j[c] exp(gx_i[c] - gw_j[c])."""
    if not decays.per_channel:
        exponent = torch.where(mask, gx - gw.transpose(-1, -2), 0.0)
        return torch.where(mask, (x @ w.transpose(-1, -2)) * exponent.exp(), 0.0)
    return _gram_per_channel(x, gx, w, gw, mask, decays, substeps)


def _gram_per_channel(
    x: Tensor, gx: Tensor, w: Tensor, gw: Tensor, mask: Tensor, decays: Decays, substeps: int
) -> Tensor:
    """By halves: a later half against the earlier one is a product anchored at the later half's entry, so both
    exponents are <= 0.
    """
    chunk = decays.places[0].shape[3]
    size = 1 << (chunk - 1).bit_length()
    entry = _padded(decays.places[0], size, decays.whole)
    x, gx, w, gw = (cast(Tensor, part.unflatten(3, (chunk, -1))) for part in (x, gx, w, gw))
    x, w = (_padded(part, size, torch.zeros_like(part[:, :, :, :1])) for part in (x, w))
    gx, gw = (_padded(part, size, decays.whole[..., None, :]) for part in (gx, gw))
    own = mask[: x.shape[4], :substeps]
    exponent = torch.where(own[..., None], gx[..., :, None, :] - gw[..., None, :, :], 0.0)
    block = torch.where(own, (x[..., :, None, :] * w[..., None, :, :] * exponent.exp()).sum(-1), 0.0)
    half = 1
    while half < size:
        anchor = entry[:, :, :, half :: 2 * half, None, :]
        later, earlier = (slice(half, None), slice(None, half))
        left = _halves(x, half, later) * (_halves(gx, half, later) - anchor).exp()
        right = _halves(w, half, earlier) * (anchor - _halves(gw, half, earlier)).exp()
        first, second = block[:, :, :, 0::2], block[:, :, :, 1::2]
        below = torch.cat([left @ right.transpose(-1, -2), second], dim=-1)
        block = torch.cat([torch.cat([first, torch.zeros_like(first)], dim=-1), below], dim=-2)
        half *= 2
    return block[:, :, :, 0, : mask.shape[0], : mask.shape[1]]


def _padded(x: Tensor, size: int, filler: Tensor) -> Tensor:
    """Tokens [B, HV, N, C, ...] filled up to `size`. Log decays are filled with those of the whole chunk: one from
    before a decay of the last token would leave an exponent > 0.
    """
    missing = size - x.shape[3]
    return torch.cat([x, filler.expand(*x.shape[:3], missing, *x.shape[4:])], dim=3) if missing else x


def _halves(x: Tensor, half: int, part: slice) -> Tensor:
    """[B, HV, N, C, rows, K] -> that half of every pair of halves, [B, HV, N, pairs, half * rows, K]."""
    return cast(Tensor, x.unflatten(3, (-1, 2 * half)))[:, :, :, :, part].flatten(4, 5)
