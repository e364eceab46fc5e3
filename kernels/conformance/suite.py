"""The suite: every property of a rule on a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from archsearch.dsl import Rule
from archsearch.errors import BackendError
from archsearch.kernels.conformance import (
    agreement,
    causality,
    derivatives,
    edges,
    handover,
    limits,
    meaning,
    repeats,
)
from archsearch.kernels.conformance.inputs import Shape
from archsearch.kernels.conformance.setting import Setting
from archsearch.kernels.conformance.tolerances import TABLE
from archsearch.kernels.conformance.verdict import Verdict
from archsearch.kernels.dispatch import Backend
from archsearch.lowering import lower

Property = Callable[[Setting], Verdict]

PROPERTIES: dict[str, Property] = {
    check.__name__: check
    for check in (
        meaning.token_loop_follows_the_steps,
        agreement.chunk_matches_token_loop,
        handover.pieces_equal_whole,
        handover.steps_equal_whole,
        handover.result_does_not_depend_on_the_batch,
        handover.packed_equals_separate,
        handover.value_heads_share_keys,
        handover.padding_never_leaks,
        causality.future_does_not_leak,
        derivatives.gradient_matches_finite_differences,
        limits.limits_equal_the_named_rule,
        edges.edges_stay_finite,
        edges.any_length_works,
        repeats.repeats_are_bitwise,
    )
}

SMALL = (Shape(batch=2, tokens=51, heads=1, value_heads=2, key_dim=5, value_dim=7), (7, 24))
LARGE = (Shape(batch=2, tokens=131, heads=2, value_heads=4, key_dim=60, value_dim=100), (16, 64))
"""Sizes on a CPU and on a CUDA device: odd widths, two chunks of the larger size and three tokens."""


def run_conformance(
    rule: Rule,
    backend: Backend = "auto",
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    *,
    properties: Iterable[str] = tuple(PROPERTIES),
    shape: Shape | None = None,
    chunk_sizes: tuple[int, int] | None = None,
    seed: int = 0,
    strict: bool = False,
) -> tuple[Verdict, ...]:
    """A verdict for each of `properties`, in their order.

    `dtype`: float64 where the backend can, else bfloat16 on CUDA and float32 elsewhere. `shape`, `chunk_sizes`: small
    on a CPU. `strict`: the bounds of 16-bit floats are the table's, and do not widen with the rule's own sensitivity.
    Errors: BackendError for a backend that cannot run here or a property that does not exist; HoleError for open holes.
    """
    names = tuple(properties)
    unknown = [name for name in names if name not in PROPERTIES]
    if unknown:
        raise BackendError(f"no property is called {unknown[0]!r}; the suite has {', '.join(PROPERTIES)}")
    setting = setting_of(rule, backend, device, dtype, shape=shape, chunk_sizes=chunk_sizes, seed=seed, strict=strict)
    return tuple(PROPERTIES[name](setting) for name in names)


def assert_conforms(
    rule: Rule,
    backend: Backend = "auto",
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    *,
    properties: Iterable[str] = tuple(PROPERTIES),
    seed: int = 0,
) -> None:
    """AssertionError that shows the rule as code and every property that failed."""
    verdicts = run_conformance(rule, backend, device, dtype, properties=properties, seed=seed)
    failed = [str(verdict) for verdict in verdicts if not verdict.passed]
    if failed:
        raise AssertionError("\n".join([f"backend {backend!r}, seed {seed}, on {device}:", str(rule), *failed]))


def setting_of(
    rule: Rule,
    backend: Backend = "auto",
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    *,
    shape: Shape | None = None,
    chunk_sizes: tuple[int, int] | None = None,
    seed: int = 0,
    strict: bool = False,
) -> Setting:
    """The setting of a run, defaults filled in."""
    place = torch.device(device)
    triton = backend == "triton" or (backend == "auto" and place.type == "cuda")
    sizes, chunks = LARGE if place.type == "cuda" else SMALL
    kind = dtype or _dtype(place, triton=triton)
    if kind not in TABLE:
        raise BackendError(f"the suite has bounds for {', '.join(map(str, TABLE))}; got {kind}")
    chosen = chunk_sizes or chunks
    if shape is None and chunk_sizes is not None:
        shape = Shape(sizes.batch, 2 * max(chosen) + 3, sizes.heads, sizes.value_heads, sizes.key_dim, sizes.value_dim)
    return Setting(rule, backend, place, kind, shape or sizes, chosen, seed, strict)


def interpreted_sizes(rule: Rule) -> tuple[Shape, tuple[int, int]]:
    """The smallest two chunk sizes that the kernels have, for Triton's interpreter. A chunk holds at least 32 rows, so
    one of a single row a token is twice as long.
    """
    small = 32 if len(lower(rule).rows) == 1 else 16
    return Shape(batch=1, tokens=4 * small + 3, heads=1, value_heads=1, key_dim=5, value_dim=7), (small, 2 * small)


def _dtype(device: torch.device, *, triton: bool) -> torch.dtype:
    if not triton:
        return torch.float64
    return torch.bfloat16 if device.type == "cuda" else torch.float32
