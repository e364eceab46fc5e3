"""The scans as they are called: checked tensors, a backend that is used or refused, results in float32."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor

from archsearch.errors import BackendError, OperandError
from archsearch.kernels.dispatch import BACKENDS, Backend
from archsearch.kernels.scan import blocked, token_loop


class Scanned(NamedTuple):
    """`output` [B, T, C], and the `state` after the last token, one a sequence, float32 (float64 of float64)."""

    output: Tensor
    state: Tensor


def scan(
    g: Tensor,
    v: Tensor,
    *,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: Backend = "auto",
) -> Scanned:
    """h_t = exp(g_t) h_(t-1) + v_t, channel by channel: log decays g <= 0 and v [B, T, C] -> every h, in float32.

    initial_state [B, C], zeros when left out. cu_seqlens [N + 1]: packed sequences, B = 1, states [N, C].
    Errors: OperandError for shapes that do not fit, BackendError for a backend that cannot run here.
    """
    _check("g", g, v.shape, v)
    sequences = _sequences(v, cu_seqlens)
    kind = torch.float64 if torch.float64 in (g.dtype, v.dtype) else torch.float32
    state = _state(initial_state, (sequences, v.shape[2]), kind, v)
    match _chosen(backend, v, kind):
        case "triton":
            from archsearch.kernels.scan import launching

            return Scanned(*launching.Scan.apply(g.contiguous(), v.contiguous(), state, cu_seqlens))
        case "torch":
            return Scanned(*blocked.blocked_scan(g.to(kind), v.to(kind), state, cu_seqlens))
        case _:
            parts = _pieces(state, cu_seqlens, g.to(kind), v.to(kind))
            return _joined([token_loop.scan_loop(g, v, state) for state, g, v in parts])


def selective_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dt: Tensor,
    rates: Tensor,
    *,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: Backend = "auto",
) -> Scanned:
    """h_t = exp(dt_t rates) h_(t-1) + dt_t v_t k_t^T, o_t = h_t q_t (S6, arXiv 2312.00752, Algorithm 2).

    q, k [B, T, N], v and step sizes dt >= 0 [B, T, C], rates [C, N] <= 0 -> o [B, T, C] in the dtype of v; the state is
    [B, C, N]. Everything else as for `scan`.
    """
    batch, tokens, channels = v.shape
    _check("dt", dt, v.shape, v)
    _check("rates", rates, torch.Size((channels, rates.shape[-1])), v)
    for name, x in (("q", q), ("k", k)):
        _check(name, x, torch.Size((batch, tokens, rates.shape[1])), v)
    sequences = _sequences(v, cu_seqlens)
    kind = torch.float64 if torch.float64 in {x.dtype for x in (q, k, v, dt, rates)} else torch.float32
    state = _state(initial_state, (sequences, *rates.shape), kind, v)
    match _chosen(backend, v, kind):
        case "triton":
            from archsearch.kernels.scan import launching

            tensors = [x.contiguous() for x in (q, k, v, dt, rates)]
            return Scanned(*launching.Selective.apply(*tensors, state, cu_seqlens))
        case "torch":
            wide = (x.to(kind) for x in (q, k, v, dt, rates))
            found = Scanned(*blocked.blocked_selective_scan((*wide,), state, cu_seqlens))
        case _:
            parts = _pieces(state, cu_seqlens, *(x.to(kind) for x in (q, k, v, dt)))
            rated = rates.to(kind)
            found = _joined(
                [token_loop.selective_loop(each[0], each[1], each[2], each[3], rated, state) for state, *each in parts]
            )
    return found._replace(output=found.output.to(v.dtype))


def _chosen(backend: str, v: Tensor, kind: torch.dtype) -> str:
    if backend not in BACKENDS:
        raise BackendError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    if backend == "auto":
        return "triton" if v.is_cuda and kind == torch.float32 else "torch"
    if backend == "triton" and kind == torch.float64:
        raise OperandError('backend "triton" takes no float64. Use backend="torch" or "reference"')
    if backend == "triton" and not v.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise BackendError(
            f'backend "triton" needs tensors on a CUDA device; got {v.device}. Use backend="torch" or "auto"'
        )
    return backend


def _check(name: str, given: Tensor, expected: torch.Size, v: Tensor) -> None:
    if given.shape != expected or given.device != v.device:
        raise OperandError(
            f"{name} must have shape {list(expected)} on {v.device}; got {list(given.shape)} on {given.device}"
        )


def _sequences(v: Tensor, cu_seqlens: Tensor | None) -> int:
    if cu_seqlens is None:
        return len(v)
    if len(v) != 1:
        raise OperandError(f"cu_seqlens packs sequences along T with B = 1; got B = {len(v)}. Reshape to [1, B * T, C]")
    return len(cu_seqlens) - 1


def _state(given: Tensor | None, shape: tuple[int, ...], kind: torch.dtype, v: Tensor) -> Tensor:
    if given is None:
        return torch.zeros(shape, dtype=kind, device=v.device)
    _check("the state", given, torch.Size(shape), v)
    return given.to(kind).contiguous()


def _pieces(state: Tensor, cu_seqlens: Tensor | None, *tensors: Tensor) -> list[list[Tensor]]:
    """The state and the tensors of each packed sequence."""
    if cu_seqlens is None:
        return [[state, *tensors]]
    offsets = cast("list[int]", cu_seqlens.tolist())
    spans = enumerate(pairwise(offsets))
    return [[state[n : n + 1], *(x[:, a:b] for x in tensors)] for n, (a, b) in spans]


def _joined(parts: list[tuple[Tensor, Tensor]]) -> Scanned:
    return Scanned(torch.cat([output for output, _ in parts], 1), torch.cat([state for _, state in parts]))
