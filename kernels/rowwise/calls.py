"""The kernels as functions of autograd, for R replicas at once; R = 1 is one model."""

from __future__ import annotations

import itertools
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from archsearch.kernels.rowwise import programs

IGNORED = -100
"""The answer of a row that has none."""
TILE, TILE_BACK = (32, 64), (16, 64)
"""Tokens and channels of a block of a convolution, and of its way back, which keeps more in registers."""
WORDS = 4096
"""Of a block of a vocabulary, at most."""
NUMBERS = 2048
"""Of a block of rows that are normalised."""
PIECES = 64
"""Programs that share the rows of one replica's weights on the way back."""

STEPPED = 1024
"""Numbers that a program of an optimiser's step takes."""

Gate = Literal["swish", "sigmoid", "none"]


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Each channel of x [R, B, T, C] under its own filter of W tokens up to its own, weight [R, C, W], bias [R, C].

    Returns neighbouring channels apart, [B, T, R, n] for every n of `sizes`, as heads of replicas stand side by side.
    """
    rows = x if x.stride(3) == 1 else x.contiguous()
    filters = weight.contiguous()
    return cast(Any, _Convolution).apply(rows, filters, None if bias is None else bias.contiguous(), sizes)


def cross_entropy(logits: Tensor, answers: Tensor) -> Tensor:
    """logits [rows, words], answers int64 [rows], `IGNORED` where none -> losses [rows] in nats, float32."""
    return cast(Tensor, cast(Any, _CrossEntropy).apply(logits.contiguous(), answers.contiguous()))


def gated_norm(o: Tensor, gate: Tensor | None, weight: Tensor, eps: float, kind: Gate, out: torch.dtype) -> Tensor:
    """o [R, ..., N] over its root mean square, times weight [R, N] and the curve of gate [R, ..., N], in type `out`."""
    given = None if gate is None else gate.contiguous()
    return cast(Tensor, cast(Any, _GatedNorm).apply(o.contiguous(), given, weight.contiguous(), eps, kind, out))


class RowRates(NamedTuple):
    """What an optimiser's step takes of each row, [R, 1] float32.

    shrink: what the gradient is multiplied by first. step_size, root: the learning rate and the root of the squares'
    mean, with their corrections for the first steps. fade: what weight decay takes of a weight.
    """

    shrink: Tensor
    beta1: Tensor
    beta2: Tensor
    step_size: Tensor
    root: Tensor
    epsilon: Tensor
    fade: Tensor


def adamw(gradients: Tensor, weights: Tensor, mean: Tensor, square: Tensor, decaying: Tensor, rates: RowRates) -> None:
    """A step of AdamW on weights, mean and square [R, P], float32, in place; decaying [1, P]: 1 where fade acts."""
    rows, size = weights.shape
    grid = (_blocks(size, STEPPED), rows)
    launched(programs.adamw, grid, gradients, weights, mean, square, decaying, *rates, size, BLOCK=STEPPED)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: tuple[int, ...]
    ) -> tuple[Tensor, ...]:
        replicas, sequences, tokens, channels = x.shape
        taps = weight.shape[2]
        found: list[Tensor] = []
        for part in _parts(sizes):
            own, y = x[..., part], x.new_empty(sequences, tokens, replicas, part.stop - part.start)
            tensors = (own, weight[:, part], None if bias is None else bias[:, part], y)
            steps = (*_steps(own), *_steps(y.permute(2, 0, 1, 3)))
            grid = (replicas * sequences, _blocks(y.shape[3], TILE[1]), _blocks(tokens, TILE[0]))
            tiles = {"W": taps, "BT": TILE[0], "BC": TILE[1]}
            launched(programs.convolve, grid, *tensors, sequences, tokens, y.shape[3], *steps, channels, **tiles)
            found.append(y)
        ctx.save_for_backward(x, weight)
        ctx.biased, ctx.sizes = bias is not None, sizes
        return tuple(found)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        replicas, sequences, tokens, channels = x.shape
        taps = weight.shape[2]
        d_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        d_weight = x.new_empty(replicas, sequences, channels, taps, dtype=torch.float32)
        tiles = {"W": taps, "BT": TILE_BACK[0], "BC": TILE_BACK[1]}
        for part, d_y in zip(_parts(ctx.sizes), slopes, strict=True):
            size, d_y = part.stop - part.start, d_y.contiguous().permute(2, 0, 1, 3)
            tensors = (x[..., part], weight[:, part], d_y, d_x[..., part], d_weight[:, :, part])
            steps = (*_steps(tensors[0]), *_steps(d_y), *_steps(tensors[3]))
            grid = (replicas * sequences, _blocks(size, TILE_BACK[1]))
            launched(programs.convolve_back, grid, *tensors, sequences, tokens, size, *steps, channels, **tiles)
        sums = [slope.sum((0, 1), dtype=torch.float32) for slope in slopes] if ctx.biased else []
        d_bias = torch.cat(sums, 1).to(weight.dtype) if sums else None
        return d_x, d_weight.sum(1).to(weight.dtype), d_bias, None


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, answers: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, words = logits.shape
        losses, logs = (logits.new_empty(rows, dtype=torch.float32) for _ in range(2))
        tiles = {"IGNORED": IGNORED, "BV": min(WORDS, _power(words))}
        launched(programs.cross_entropy, (rows,), logits, answers, losses, logs, words, **tiles)
        ctx.save_for_backward(logits, answers, logs)
        return losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_losses: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        logits, answers, logs = ctx.saved_tensors
        rows, words = logits.shape
        d_logits = torch.empty_like(logits)
        tiles = {"IGNORED": IGNORED, "BV": min(WORDS, _power(words))}
        grid = (rows, _blocks(words, tiles["BV"]))
        tensors = (logits, answers, logs, d_losses.contiguous(), d_logits)
        launched(programs.cross_entropy_back, grid, *tensors, words, **tiles)
        return d_logits, None


class _GatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, o: Tensor, gate: Tensor | None, weight: Tensor, eps: float, kind: Gate, out: torch.dtype
    ) -> Tensor:
        replicas, width = weight.shape
        rows = o.numel() // width
        y = torch.empty_like(o, dtype=out)
        tiles = _row_tiles(width)
        grid = (_blocks(rows, tiles["BR"]),)
        launched(programs.gated_norm, grid, o, gate, weight, y, rows, rows // replicas, width, eps, GATE=kind, **tiles)
        ctx.save_for_backward(o, gate, weight)
        ctx.eps, ctx.kind = eps, kind
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        o, gate, weight = ctx.saved_tensors
        replicas, width = weight.shape
        rows = o.numel() // width
        tiles = _row_tiles(width)
        group = rows // replicas
        pieces = min(PIECES, _blocks(group, tiles["BR"]))
        d_o, d_gate = torch.empty_like(o), None if gate is None else torch.empty_like(gate)
        d_weight = o.new_empty(replicas, pieces, width, dtype=torch.float32)
        tensors = (o, gate, weight, d_y.contiguous(), d_o, d_gate, d_weight)
        sizes = (rows, group, width, ctx.eps, pieces)
        launched(programs.gated_norm_back, (replicas, pieces), *tensors, *sizes, GATE=ctx.kind, **tiles)
        return d_o, d_gate, d_weight.sum(1).to(weight.dtype), None, None, None


def launched(kernel: Any, grid: tuple[int, ...], *given: Any, **tiles: Any) -> None:
    """One program a place of the grid, on the device of the tensors."""
    with torch.cuda.device_of(given[0]):
        kernel[grid](*given, **tiles, num_warps=4)


def _parts(sizes: tuple[int, ...]) -> list[slice]:
    ends = list(itertools.accumulate(sizes))
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _steps(x: Tensor) -> tuple[int, int, int]:
    """From replica to replica, sequence to sequence, token to token of [R, B, T, n]."""
    return x.stride(0), x.stride(1), x.stride(2)


def _row_tiles(width: int) -> dict[str, int]:
    wide = _power(width)
    return {"BR": max(1, NUMBERS // wide), "BN": wide}


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()
