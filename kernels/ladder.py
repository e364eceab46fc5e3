"""The validity ladder of one rule on the machine at hand: a row a promise, cheapest first.

The properties live in `archsearch.kernels.conformance`; here stands which of them make up a row, where it runs, and
what its line says. Rows that need a layer or training stand on the floors that have them, and are handed to `climb`:
7 and 11 (live paths, cost) in `archsearch.mixers.ladder`, 10 (falling loss) in `archsearch.studies.training.ladder`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from importlib.util import find_spec

import torch

from archsearch.dsl import Rule
from archsearch.errors import BackendError
from archsearch.kernels.bench.apart import Broken, start
from archsearch.kernels.conformance.setting import Setting
from archsearch.kernels.conformance.suite import PROPERTIES, interpreted_sizes, setting_of
from archsearch.kernels.conformance.verdict import Verdict
from archsearch.kernels.dispatch import BACKENDS, Backend, compile
from archsearch.kernels.growth import results_have_their_kind, state_holds_no_more_than_was_written


class Status(Enum):
    """How a row ended."""

    PASSED = "passed"
    FAILED = "FAILED"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Line:
    """One row: the measurement nearest to its bound, or why there is none. `failures` lists every broken property."""

    row: int
    title: str
    status: Status
    error: float | None
    bound: float | None
    where: str
    failures: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Check:
    """A row that is still to be climbed. `measure` gives its verdicts; none where it cannot run here: `otherwise` then
    says why.
    """

    number: int
    title: str
    measure: Callable[[], Sequence[Verdict]]
    otherwise: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Title and properties of a row. `exact` are settings in float64, `kernels` those of the generated kernels."""

    number: int
    title: str
    properties: tuple[Callable[[Setting], Verdict], ...]
    on: Callable[[Targets], tuple[Setting, ...]]


@dataclass(frozen=True, slots=True)
class Targets:
    """Where rows run: `exact` and `wide_chunks` in float64, `coarse` in float32 and bfloat16, `kernels` in Triton."""

    exact: Setting
    wide_chunks: Setting
    coarse: tuple[Setting, ...]
    kernels: tuple[Setting, ...]
    no_kernels: str
    interpreter: bool
    """Whether the kernels run in Triton's interpreter, in another process, for want of a device."""


def climb(rule: Rule, backend: str = "auto", others: Sequence[Check] = ()) -> Iterator[Line]:
    """The rows one after another, each when it is done, those of `others` in their places; one that is a row of the
    rule alone stands for it.

    Errors: HoleError for open holes; BackendError for a backend that is unknown or cannot run here.
    """
    form = named(backend)
    compile(rule, form)
    targets = _targets(rule, form)
    instead = {(check.number, check.title) for check in others}
    rows = [row for row in ROWS if (row.number, row.title) not in instead]
    own = [Check(row.number, row.title, partial(_verdicts, row, targets), targets.no_kernels) for row in rows]
    for check in sorted([*own, *others], key=lambda each: each.number):
        yield _line(check)


def stays_in_range(rule: Rule, backend: Backend) -> Check:
    """Row 8 of a rule."""
    return Check(IN_RANGE.number, IN_RANGE.title, partial(_verdicts, IN_RANGE, _targets(rule, backend)))


def passed(lines: Sequence[Line]) -> bool:
    """Whether no row failed; a row that could not run is not a failure, nor a pass."""
    return all(line.status is not Status.FAILED for line in lines)


def values_agree(rule: Rule, backend: Backend, device: torch.device, dtype: torch.dtype) -> Verdict:
    """The value check that stands before any timing: output, state and gradients against the token loop."""
    setting = setting_of(rule, backend, device, dtype)
    return PROPERTIES["chunk_matches_token_loop"](setting)


def named(backend: str) -> Backend:
    """The backend of this name. Errors: BackendError."""
    match backend:
        case "auto" | "reference" | "torch" | "triton":
            return backend
        case _:
            raise BackendError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")


def _line(check: Check) -> Line:
    start = time.perf_counter()
    verdicts = check.measure()
    seconds = time.perf_counter() - start
    if not verdicts:
        return Line(check.number, check.title, Status.NOT_RUN, None, None, check.otherwise, (), 0.0)
    failed = [verdict for verdict in verdicts if not verdict.passed]
    worst = max(failed or verdicts, key=_nearness)
    status = Status.FAILED if failed else Status.PASSED
    failures = tuple(map(str, failed))
    return Line(check.number, check.title, status, worst.error, worst.bound, worst.where, failures, seconds)


def _verdicts(row: Row, targets: Targets) -> Sequence[Verdict]:
    if row.number == KERNELS and targets.interpreter:
        return _elsewhere(targets.exact.rule)
    return [check(setting) for setting in row.on(targets) for check in row.properties]


def _elsewhere(rule: Rule) -> Sequence[Verdict]:
    """The generated kernels in Triton's interpreter, which a process has from its start or never."""
    found = start(interpreted, (rule,), {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}).result()
    return (Verdict("runs", float("nan"), 0.0, found.reason),) if isinstance(found, Broken) else found


def interpreted(rule: Rule) -> tuple[Verdict, ...]:
    """Values and gradients in float32, in a process that interprets Triton."""
    shape, chunks = interpreted_sizes(rule)
    verdict = PROPERTIES["chunk_matches_token_loop"](
        setting_of(rule, "triton", "cpu", torch.float32, shape=shape, chunk_sizes=chunks)
    )
    return (replace(verdict, where=f"{verdict.where}, in Triton's interpreter"),)


def _nearness(verdict: Verdict) -> float:
    if verdict.error != verdict.error:
        return float("inf")
    return verdict.error / verdict.bound if verdict.bound else verdict.error


def _targets(rule: Rule, backend: Backend) -> Targets:
    exact: Backend = "reference" if backend == "reference" else "torch"
    cuda, interpreted = torch.cuda.is_available(), os.environ.get("TRITON_INTERPRET") == "1"
    asked = backend == "triton" or (backend == "auto" and cuda)
    dtypes = (torch.float32, torch.bfloat16)
    where = "no CUDA device" if not cuda else f'backend "{backend}" was asked for'
    kernels: tuple[Setting, ...] = ()
    if asked and cuda:
        kernels = tuple(setting_of(rule, "triton", "cuda", dtype) for dtype in dtypes)
    elif asked and interpreted:
        kernels = (setting_of(rule, "triton", "cpu", torch.float32),)
    return Targets(
        exact=setting_of(rule, exact, "cpu", torch.float64),
        wide_chunks=setting_of(rule, exact, "cpu", torch.float64, chunk_sizes=(16, 64)),
        coarse=tuple(setting_of(rule, exact, "cpu", dtype) for dtype in dtypes),
        kernels=kernels,
        no_kernels=where,
        interpreter=backend == "auto" and not cuda and find_spec("triton") is not None,
    )


def _everywhere(targets: Targets) -> tuple[Setting, ...]:
    return (targets.exact, *targets.kernels)


def _properties(*names: str) -> tuple[Callable[[Setting], Verdict], ...]:
    return tuple(PROPERTIES[name] for name in names)


KERNELS = 3
IN_RANGE = Row(8, "the state stays in range", (state_holds_no_more_than_was_written,), lambda on: (on.exact,))
ROWS = (
    Row(1, "shape, dtype, finite", (results_have_their_kind,), lambda on: (*on.coarse, *on.kernels)),
    Row(1, "numbers at the ends", _properties("edges_stay_finite", "any_length_works"), _everywhere),
    Row(2, "token by token = the steps written", _properties("token_loop_follows_the_steps"), lambda on: (on.exact,)),
    Row(2, "chunk = token by token", _properties("chunk_matches_token_loop"), lambda on: (on.wide_chunks,)),
    Row(
        KERNELS,
        "kernels = token by token",
        _properties("chunk_matches_token_loop", "repeats_are_bitwise"),
        lambda on: on.kernels,
    ),
    Row(
        4,
        "gradients = finite differences",
        _properties("gradient_matches_finite_differences"),
        lambda on: (on.exact,),
    ),
    Row(5, "no token sees a later one", _properties("future_does_not_leak"), _everywhere),
    Row(
        6,
        "batch, packing, padding, pieces",
        _properties(
            "result_does_not_depend_on_the_batch",
            "value_heads_share_keys",
            "packed_equals_separate",
            "padding_never_leaks",
            "pieces_equal_whole",
            "steps_equal_whole",
        ),
        _everywhere,
    ),
    IN_RANGE,
    Row(9, "limits are the rules they should be", _properties("limits_equal_the_named_rule"), lambda on: (on.exact,)),
)
