"""The validity ladder of a pattern's layer that is no rule: what `archsearch check mamba` climbs."""

from __future__ import annotations

import json as jsonlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from archsearch.errors import ConfigError
from archsearch.kernels.dispatch import Backend
from archsearch.kernels.ladder import Line, Status, passed
from archsearch.kernels.showing import console
from archsearch.kernels.verdicts import print_line, row_json, summary
from archsearch.mixers.layer.initialisation import Stream
from archsearch.mixers.models.blocks import LayerMixer, mixer_of
from archsearch.mixers.models.options import Model
from archsearch.mixers.models.partner_counts import PARTNERS, Partner
from archsearch.mixers.zoo import rules

MODEL = Model(width=32, heads=4, window=5)
LENGTH = 23
SCANS = ("mamba", "griffin")
EXACT = 1e-10
"""Bound in float64 of outputs of size 1."""


@dataclass(frozen=True, slots=True)
class Row:
    """Title, what is measured of a layer, its bound in float64, and which kinds of layer have it."""

    number: int
    title: str
    error: Callable[[Partner], float]
    bound: float = EXACT
    kinds: tuple[str, ...] = PARTNERS


def check_layer(kind: Partner, *, backend: str, json: bool) -> bool:
    """Print a line a row and the verdict; whether none failed. ConfigError for a backend that the layer has not."""
    if backend not in ("auto", "torch") and kind not in SCANS:
        raise ConfigError(f'layer {kind!r} has one form, in PyTorch; got backend {backend!r}. Use "auto"')
    lines: list[Line] = []
    for line in ladder(kind):
        lines.append(line)
        if not json:
            print_line(line, console())
    if json:
        print(jsonlib.dumps({"name": kind, "passed": passed(lines), "rows": [*map(row_json, lines)]}, indent=2))
    else:
        console().print(f"\n{summary(kind, lines)}", highlight=False)
    return passed(lines)


def ladder(kind: Partner) -> Iterator[Line]:
    """The rows that the layer has, one after another."""
    for row in ROWS:
        if kind in row.kinds:
            start = time.perf_counter()
            error = row.error(kind)
            status = Status.PASSED if error <= row.bound else Status.FAILED
            seconds = time.perf_counter() - start
            yield Line(row.number, row.title, status, error, row.bound, f"{kind}, {LENGTH} tokens", (), seconds)
        elif row.number == 3 and kind in SCANS:
            yield Line(3, row.title, Status.NOT_RUN, None, None, "no CUDA device", (), 0.0)


def _layer(
    kind: Partner, backend: Backend = "auto", device: str = "cpu", dtype: torch.dtype = torch.float64
) -> LayerMixer:
    """With weights far from their start; the same for one kind."""
    layer = mixer_of(kind, rules["linear"], MODEL, None, backend, None, "fast", Stream(1))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return layer.to(device=device, dtype=dtype)


def _tokens(batch: int = 2, length: int = LENGTH) -> Tensor:
    drawn = torch.randn(
        batch, length, MODEL.width, generator=torch.Generator().manual_seed(length), dtype=torch.float64
    )
    return drawn


def _distance(found: Tensor, expected: Tensor) -> float:
    error = (found.double().cpu() - expected.double().cpu()).abs()
    return float(error.max()) if bool(error.isfinite().all()) else float("nan")


def _finite(kind: Partner) -> float:
    """How many numbers are not, of outputs and gradients, for inputs of 100 and of 0.

    Blocks see normalised inputs; beyond logits of 1e8 the backward of torch's own attention on a CPU is not finite.
    """
    layer, bad = _layer(kind, dtype=torch.float32), 0
    for size in (100.0, 0.0):
        y = layer((size * _tokens()).float())
        y.sum().backward()
        found = [y, *(p.grad for p in layer.parameters() if p.grad is not None)]
        bad += sum(int((~x.isfinite()).sum()) for x in found)
    return float(bad)


@torch.no_grad()
def _pieces(kind: Partner) -> float:
    layer, x = _layer(kind), _tokens()
    whole, errors = layer(x), list[float]()
    for cuts in (list(range(LENGTH + 1)), [0, 1, 1, 8, 9, LENGTH]):
        cache = layer.init_cache(2)
        pieces = [layer(x[:, a:b], cache=cache) for a, b in pairwise(cuts)]
        errors.append(_distance(torch.cat(pieces, 1), whole))
    return max(errors)


@torch.no_grad()
def _packed(kind: Partner) -> float:
    layer, parts = _layer(kind), [_tokens(1, length) for length in (4, 0, 1, 18)]
    packed = layer(torch.cat(parts, 1), cu_seqlens=torch.tensor([0, 4, 4, 5, 23]))
    alone = torch.cat([layer(part) for part in parts], 1)
    return max(_distance(packed, alone), _distance(layer(_tokens())[1:], layer(_tokens()[1:])))


@torch.no_grad()
def _leak(kind: Partner) -> float:
    layer, x = _layer(kind), _tokens()
    later = torch.cat([x[:, :14], x[:, 14:] + 1], 1)
    return _distance(layer(later)[:, :14], layer(x)[:, :14])


def _differences(kind: Partner) -> float:
    """The slope along one direction of everything, against autograd's."""
    layer, x = _layer(kind), _tokens()
    slopes, size = torch.randn_like(x), 1e-5
    leaves = [x.requires_grad_(), *layer.parameters()]
    directions = [torch.randn_like(leaf) for leaf in leaves]
    gradients = torch.autograd.grad((layer(x) * slopes).sum(), leaves)
    expected = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    values: list[float] = []
    with torch.no_grad():
        for sign in (1, -2):
            for leaf, direction in zip(leaves, directions, strict=True):
                leaf += sign * size * direction
            values.append(float((layer(x) * slopes).sum()))
    return abs((values[0] - values[1]) / (2 * size) - expected) / max(1.0, abs(expected))


def _forms(kind: Partner) -> float:
    return max(_distance(a, b) for a, b in zip(_everything(kind, "torch"), _everything(kind, "reference"), strict=True))


def _kernels(kind: Partner) -> float:
    """Relative to the largest number of each tensor, in float32."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pairs = zip(_everything(kind, "triton", device, torch.float32), _everything(kind, "reference"), strict=True)
    return max(_distance(a, b) / max(1e-3, float(b.abs().max())) for a, b in pairs)


def _everything(
    kind: Partner, backend: Backend, device: str = "cpu", dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Outputs and all gradients."""
    layer: nn.Module = _layer(kind, backend, device, dtype)
    x = _tokens().to(device=device, dtype=dtype).requires_grad_()
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])]


def _has_kernels() -> bool:
    return torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"


ROWS = (
    Row(1, "finite numbers at the ends", _finite, 0.0),
    Row(2, "blocks = token by token", _forms, kinds=SCANS),
    Row(3, "kernels = token by token", _kernels, 1e-4, kinds=SCANS if _has_kernels() else ()),
    Row(4, "gradients = finite differences", _differences, 1e-6),
    Row(5, "no token sees a later one", _leak, 0.0),
    Row(6, "batch and packing", _packed),
    Row(6, "pieces and steps = the whole", _pieces),
)
