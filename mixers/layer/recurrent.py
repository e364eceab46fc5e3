"""Layers whose state is a vector that decays channel by channel: Mamba-1, and Griffin's recurrent block with RG-LRU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archsearch.errors import OperandError
from archsearch.kernels.dispatch import Backend
from archsearch.kernels.entering import exact
from archsearch.kernels.scan.calls import Scanned, scan, selective_scan
from archsearch.kernels.scan.token_loop import scan_step, selective_step
from archsearch.mixers.layer.convolution import ShortConvolution
from archsearch.mixers.layer.initialisation import Stream, gate_constant, inverse_softplus
from archsearch.mixers.layer.packing import Packing, packing_of
from archsearch.mixers.layer.partner_options import GriffinSizes, MambaSizes
from archsearch.mixers.layer.shapes import parted

SHARPNESS = 8.0
"""c of RG-LRU: how far the gate can lower a decay."""
LEAST = 1e-6
"""1 - a^2 of RG-LRU is no less: its square root has no slope at 0."""


@dataclass(slots=True)
class ScanCache:
    """A recurrent layer's memory, changed in place. It carries no gradient.

    state [B, C] or [B, C, N], float32 (float64 in a float64 layer); inputs [B, W - 1, C] of the convolution; seen [B]
    tokens.
    """

    state: Tensor
    inputs: Tensor
    seen: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of state and convolution inputs, all sequences."""
        return self.state.nbytes + self.inputs.nbytes

    def advance(self, state: Tensor, x: Tensor, cu_seqlens: Tensor | None) -> None:
        """To the state after the tokens of `x` [B, T, C]."""
        self.state = state.detach()
        self.seen = self.seen + (x.shape[1] if cu_seqlens is None else cu_seqlens.diff())


class MambaLayer(nn.Module):
    """Mamba-1 (2312.00752, Algorithm 2 and Fig. 3): [B, T, width] -> [B, T, width].

    u, z = W_in x; u = silu(conv(u)); d, k, q = W_u u; dt = softplus(W_dt d + dt_bias); o = S6(q, k, u, dt) + D u, with
    rates -exp(A_log); W_out (o silu(z)). The rates start at -1 .. -N in every channel, softplus(dt_bias) log-uniform in
    [1e-3, 0.1].
    """

    def __init__(
        self, width: int, sizes: MambaSizes, backend: Backend = "auto", *, stream: Stream | None = None
    ) -> None:
        super().__init__()
        stream, self.sizes = stream or Stream.fresh(), sizes
        self.backend: Backend = backend
        channels, rank = sizes.channels, sizes.rank
        self.projection = nn.Parameter(torch.cat([(stream / name).normal(channels, width) for name in ("u", "gate")]))
        self.convolution = ShortConvolution([(stream, channels)], sizes.conv, bias=True)
        self.selection = nn.Parameter((stream / "selection").normal(rank + 2 * sizes.state, channels))
        self.steps = nn.Parameter((stream / "steps").uniform(-(rank**-0.5), rank**-0.5, channels, rank))
        started = (stream / "dt_bias").log_uniform(1e-3, 0.1, channels).clamp_(min=1e-4)
        self.dt_bias = gate_constant(inverse_softplus(started))
        self.A_log = gate_constant(torch.arange(1.0, sizes.state + 1).log().repeat(channels, 1))
        self.D = gate_constant(torch.ones(channels))
        self.output = nn.Parameter((stream / "output").normal(width, channels))

    def forward(self, x: Tensor, cache: ScanCache | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        """[B, T, width] -> the same; `cache` and cu_seqlens as in `Mixer`. Errors: OperandError for another's cache."""
        packing = _packing(x, cache, cu_seqlens)
        u, z = parted(F.linear(x, self.projection), self.sizes.channels)
        u = F.silu(self.convolution(u, None if cache is None else cache.inputs, packing))
        d, k, q = parted(F.linear(u, self.selection), (self.sizes.rank, self.sizes.state, self.sizes.state))
        dt = F.softplus(exact(F.linear(d, self.steps)) + exact(self.dt_bias))
        with torch.autocast(x.device.type, enabled=False):
            o = exact(self._scanned(q, k, u, dt, cache, cu_seqlens)) + exact(self.D) * exact(u)
            o = (o * F.silu(exact(z))).to(u.dtype)
        return F.linear(o, self.output)

    def _scanned(
        self, q: Tensor, k: Tensor, u: Tensor, dt: Tensor, cache: ScanCache | None, cu_seqlens: Tensor | None
    ) -> Tensor:
        rates = -exact(self.A_log).exp()
        if cache is None:
            return selective_scan(q, k, u, dt, rates, cu_seqlens=cu_seqlens, backend=self.backend).output
        if u.shape[1] == 1 and cu_seqlens is None:
            token = [exact(y[:, 0]) for y in (q, k, u, dt)]
            output, state = selective_step(token[0], token[1], token[2], token[3], rates, cache.state)
            found = Scanned(output[:, None], state)
        else:
            start = cache.state.clone()
            found = selective_scan(q, k, u, dt, rates, initial_state=start, cu_seqlens=cu_seqlens, backend=self.backend)
        cache.advance(found.state, u, cu_seqlens)
        return found.output

    def init_cache(self, batch: int) -> ScanCache:
        """The memory before the first token, for `batch` sequences."""
        return _empty(self.output, batch, (self.sizes.channels, self.sizes.state), self.sizes.conv)


class GriffinLayer(nn.Module):
    """Griffin's recurrent block (2402.19427, sections 2.3-2.4): [B, T, width] -> [B, T, width].

    u = conv(W_u x) + b; W_out (RG-LRU(u) gelu(W_g x)). RG-LRU: r = sigmoid(W_a u + b_a), i = sigmoid(W_i u + b_i),
    log a = -8 r softplus(L); h = a h + sqrt(1 - a^2) (i u), at the first token of a sequence h = i u. At r = 1 decays
    start uniform in [0.9, 0.999]; the gates' matrices are block-diagonal.
    """

    def __init__(
        self, width: int, sizes: GriffinSizes, backend: Backend = "auto", *, stream: Stream | None = None
    ) -> None:
        super().__init__()
        stream, self.sizes = stream or Stream.fresh(), sizes
        self.backend: Backend = backend
        channels, block = sizes.channels, sizes.channels // sizes.blocks
        self.projection = nn.Parameter(torch.cat([(stream / name).normal(channels, width) for name in ("u", "gate")]))
        self.convolution = ShortConvolution([(stream, channels)], sizes.conv, bias=True)
        drawn = [(stream / name).normal(sizes.blocks, block, block, std=block**-0.5) for name in ("forget", "input")]
        self.gates = nn.Parameter(torch.cat(drawn, 2))
        self.gate_bias = gate_constant(torch.zeros(2, channels))
        kept = (stream / "forget_base").uniform(0.9, 0.999, channels)
        self.forget_base = gate_constant(inverse_softplus(-kept.log() / SHARPNESS))
        self.output = nn.Parameter((stream / "output").normal(width, channels))

    def forward(self, x: Tensor, cache: ScanCache | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        """[B, T, width] -> the same; `cache` and cu_seqlens as in `Mixer`. Errors: OperandError for another's cache."""
        packing = _packing(x, cache, cu_seqlens)
        u, gate = parted(F.linear(x, self.projection), self.sizes.channels)
        u = self.convolution(u, None if cache is None else cache.inputs, packing)
        blocks = torch.einsum("btnc,ncd->btnd", u.unflatten(-1, (self.sizes.blocks, -1)), self.gates)
        forget, enter = (y.flatten(-2) for y in parted(blocks, self.sizes.channels // self.sizes.blocks))
        with torch.autocast(x.device.type, enabled=False):
            bias = exact(self.gate_bias)
            g = -SHARPNESS * torch.sigmoid(exact(forget) + bias[0]) * F.softplus(exact(self.forget_base))
            first = _first(x, cache, packing)[..., None]
            scale = torch.where(first, 1.0, (-torch.expm1(2 * g)).clamp(min=LEAST).sqrt())
            h = self._scanned(g, scale * torch.sigmoid(exact(enter) + bias[1]) * exact(u), cache, cu_seqlens)
            o = (h * F.gelu(exact(gate), approximate="tanh")).to(u.dtype)
        return F.linear(o, self.output)

    def _scanned(self, g: Tensor, v: Tensor, cache: ScanCache | None, cu_seqlens: Tensor | None) -> Tensor:
        if cache is None:
            return scan(g, v, cu_seqlens=cu_seqlens, backend=self.backend).output
        if g.shape[1] == 1 and cu_seqlens is None:
            state = scan_step(g[:, 0], v[:, 0], cache.state)
            found = Scanned(state[:, None], state)
        else:
            start = cache.state.clone()
            found = scan(g, v, initial_state=start, cu_seqlens=cu_seqlens, backend=self.backend)
        cache.advance(found.state, g, cu_seqlens)
        return found.output

    def init_cache(self, batch: int) -> ScanCache:
        """The memory before the first token, for `batch` sequences."""
        return _empty(self.output, batch, (self.sizes.channels,), self.sizes.conv)


def _empty(like: Tensor, batch: int, shape: tuple[int, ...], conv: int) -> ScanCache:
    kind = torch.float64 if like.dtype == torch.float64 else torch.float32
    return ScanCache(
        like.new_zeros(batch, *shape, dtype=kind),
        like.new_zeros(batch, conv - 1, shape[0]),
        torch.zeros(batch, dtype=torch.int64, device=like.device),
    )


def _packing(x: Tensor, cache: ScanCache | None, cu_seqlens: Tensor | None) -> Packing | None:
    """The packing of `x`. OperandError for a cache of another kind, or of another number of sequences."""
    packing = packing_of(x, cu_seqlens)
    sequences = len(x) if packing is None else packing.sequences
    if cache is not None and not isinstance(cache, ScanCache):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OperandError(f"cache must come from init_cache({sequences}); got {type(cache).__name__}")
    if cache is not None and len(cache.seen) != sequences:
        raise OperandError(
            f"the cache must hold {sequences} sequences; got {len(cache.seen)}. Use init_cache({sequences})"
        )
    return packing


def _first(x: Tensor, cache: ScanCache | None, packing: Packing | None) -> Tensor:
    """[B or 1, T], True at the first token of a sequence."""
    if packing is not None:
        first = packing.place == 0
        return (first if cache is None else first & (cache.seen[packing.sequence] == 0))[None]
    first = torch.arange(x.shape[1], device=x.device) == 0
    return first[None] if cache is None else first & (cache.seen == 0)[:, None]
