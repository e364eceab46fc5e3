"""One rule on the machine at hand: values at each size first, then the time of every part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor

from archsearch.dsl import Kind, Rule
from archsearch.errors import ArchsearchError, described
from archsearch.kernels.bench.case import Case, same_layer
from archsearch.kernels.bench.timing import (
    copy_bandwidth,
    first_seconds,
    graph_seconds,
    launches,
    median_seconds,
    peak_bytes,
)
from archsearch.kernels.bench.values import Forward, agrees_at, forward_of
from archsearch.kernels.conformance.inputs import Difficulty, Inputs, Shape, draw
from archsearch.kernels.conformance.verdict import Verdict, worst
from archsearch.kernels.dispatch import CompiledRule, compile
from archsearch.kernels.ladder import values_agree
from archsearch.lowering import lower
from archsearch.lowering.cost import cost

DRAWN = 256
"""Tokens that are drawn; longer sequences repeat them."""
LOW_MEMORY = "both, low memory"
"""The part that is forward and backward in the low-memory mode."""


class Role(Enum):
    """Ours, a peer that computes the same rule, or a proxy: the nearest that a peer can do, whose work is like ours."""

    OURS = "ours"
    PEER = "peer"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Part:
    """What is timed: a call, and the tokens and the bytes of the plan that it stands for."""

    name: str
    call: Callable[[], None]
    tokens: int
    bytes: float


@dataclass(frozen=True, slots=True)
class Timing:
    """One part. On CUDA only: `floor_share`, the time that the plan's bytes need at the measured bandwidth over the
    time taken; `peak_bytes` above the inputs; `launches`; `graph_seconds`, replayed as a graph, or the reason in
    `graph_fault`. `first_seconds`: the first call in its process.
    """

    part: str
    seconds: float
    tokens_per_second: float
    floor_share: float | None
    peak_bytes: int | None
    first_seconds: float
    graph_seconds: float | None = None
    graph_fault: str | None = None
    launches: int | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """One implementation at one size. `path` says what ran. Without a passed `verdict` there are no timings."""

    rule: str
    role: Role
    path: str
    case: Case
    verdict: Verdict
    timings: tuple[Timing, ...]


def measure_rule(rule: Rule, cases: Sequence[Case]) -> tuple[Measured, ...]:
    """Values first: small, hard and odd inputs, then those of each size, whose kernels may be configured otherwise. A
    rule that fails them gets no timing, nor does one that raises. Steps once for each layer.

    Errors: those of archsearch, for a rule that cannot be compiled.
    """
    try:
        return _measured(rule, cases)
    except ArchsearchError:
        raise
    except Exception as fault:  # a kernel or a device that gives up must not take the other rules' figures along
        return without_speed(rule, Role.OURS, _path(cases[0]), cases, described(fault))


def without_speed(rule: Rule, role: Role, path: str, cases: Sequence[Case], reason: str) -> tuple[Measured, ...]:
    """What is told of an implementation that could not be measured."""
    verdict = Verdict("runs", float("nan"), 0.0, reason)
    return tuple(Measured(rule.name, role, path, case, verdict, ()) for case in cases)


def verdicts_of(rule: Rule, cases: Sequence[Case]) -> dict[Case, Verdict]:
    """Whether values are right at each size, of the low-memory mode too; where small inputs find a fault, that one at
    all.
    """
    forward, small = forward_of(compile(rule)), values_agree(rule, "auto", cases[0].device, cases[0].dtype)
    if not small.passed:
        return dict.fromkeys(cases, small)
    found = {case: agrees_at(forward, rule, inputs_of(rule, case), case) for case in cases}
    if cases[0].device.type == "cuda":
        thrifty = forward_of(compile(rule, memory="low"))
        low = {case: agrees_at(thrifty, rule, inputs_of(rule, case), case) for case in cases}
        found = {case: worst(verdict.name, [verdict, low[case]]) for case, verdict in found.items()}
    return found


def _measured(rule: Rule, cases: Sequence[Case]) -> tuple[Measured, ...]:
    verdicts = verdicts_of(rule, cases)
    timings = time_parts(_parts(rule, [case for case in cases if verdicts[case].passed]))
    return tuple(
        Measured(rule.name, Role.OURS, _path(case), case, verdicts[case], timings.get(case, ())) for case in cases
    )


def _parts(rule: Rule, cases: Sequence[Case]) -> dict[Case, tuple[Part, ...]]:
    """What is timed of ours: both modes of memory where the kernels run, and a step for each layer."""
    compiled, found = compile(rule), dict[Case, tuple[Part, ...]]()
    for case in cases:
        inputs = inputs_of(rule, case)
        whole = sequence_parts(forward_of(compiled), inputs, rule, case)
        if case.device.type == "cuda":
            thrifty = sequence_parts(forward_of(compile(rule, memory="low")), inputs, rule, case)[1]
            whole = (*whole, replace(thrifty, name=LOW_MEMORY))
        found[case] = (*whole, _step(compiled, rule, case)) if case in same_layer(cases) else whole
    return found


def sequence_parts(forward: Forward, inputs: Inputs, rule: Rule, case: Case) -> tuple[Part, Part]:
    """Forward alone, and forward with the backward of every operand, of what takes `inputs` by name."""
    spent = cost(lower(rule), case.sizes)
    signs = {operand.name for operand in rule.operands.values() if operand.kind is Kind.SIGN}
    leaves = {name: tensor.detach().requires_grad_(name not in signs) for name, tensor in inputs.tensors.items()}
    given = {name: tensor.detach() for name, tensor in inputs.tensors.items()}
    wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]

    def alone() -> None:
        with torch.no_grad():
            forward(given)

    def both() -> None:
        torch.autograd.grad(forward(leaves), wanted, inputs.output_slope, allow_unused=True)

    tokens = case.batch * case.tokens
    return (
        Part("forward", alone, tokens, spent.forward_bytes),
        Part("forward + backward", both, tokens, spent.training_bytes),
    )


def time_parts(parts: Mapping[Case, Sequence[Part]]) -> dict[Case, tuple[Timing, ...]]:
    """Every part at every size: all as they are called, then all as graphs, since a call that cannot be captured may
    slow down what follows.
    """
    timed = [(case, part, _eager(part, case)) for case, each in parts.items() for part in each]
    found: dict[Case, tuple[Timing, ...]] = {}
    for case, part, timing in timed:
        found[case] = (*found.get(case, ()), _with_graph(timing, part, case))
    return found


def count_ours(rule: Rule, measured: Sequence[Measured]) -> tuple[Measured, ...]:
    """Measurements of a rule with the launches counted. The profiler stays attached: nothing is timed after this."""
    return count(measured, _parts(rule, [each.case for each in measured if each.timings]))


def count(measured: Sequence[Measured], parts: Mapping[Case, Sequence[Part]]) -> tuple[Measured, ...]:
    """Measurements with the launches of their parts."""
    counts = {(case, part.name): launches(part.call, case.device) for case, each in parts.items() for part in each}
    return tuple(
        replace(
            each,
            timings=tuple(replace(timing, launches=counts.get((each.case, timing.part))) for timing in each.timings),
        )
        for each in measured
    )


def inputs_of(rule: Rule, case: Case) -> Inputs:
    """Easy inputs of a case."""
    drawn = min(case.tokens, DRAWN)
    shape = Shape(1, drawn, case.heads, case.heads, case.key_dim, case.value_dim)
    inputs = draw(lower(rule), shape, difficulty=Difficulty.EASY, dtype=case.dtype, device=case.device)

    def repeated(tensor: Tensor) -> Tensor:
        longer = tensor.repeat(case.batch, -(-case.tokens // drawn), *(1 for _ in tensor.shape[2:]))
        return longer[:, : case.tokens].contiguous()

    whole = inputs.mapped(lambda _, tensor: repeated(tensor))
    return Inputs(whole.tensors, inputs.initial_state, repeated(inputs.output_slope), inputs.state_slope)


def _path(case: Case) -> str:
    return f"archsearch, {'triton' if case.device.type == 'cuda' else 'torch'}"


def _step(compiled: CompiledRule, rule: Rule, case: Case) -> Part:
    shape = Shape(case.step_batch, 1, case.heads, case.heads, case.key_dim, case.value_dim)
    inputs = draw(lower(rule), shape, difficulty=Difficulty.EASY, dtype=case.dtype, device=case.device)
    token = {name: tensor[:, 0].contiguous() for name, tensor in inputs.tensors.items()}

    def step() -> None:
        with torch.no_grad():
            compiled.step(state=inputs.initial_state, scale=None, **token)

    spent = cost(lower(rule), case.sizes).step_bytes
    return Part(f"step, batch {case.step_batch}", step, case.step_batch, spent)


def _eager(part: Part, case: Case) -> Timing:
    first = first_seconds(part.call, case.device)
    peak = peak_bytes(part.call, case.device)
    seconds = median_seconds(part.call, case.device)
    share = None
    if case.device.type == "cuda":
        share = part.tokens * part.bytes / copy_bandwidth(case.device) / seconds
    return Timing(part.name, seconds, part.tokens / seconds, share, peak, first)


def _with_graph(timing: Timing, part: Part, case: Case) -> Timing:
    found = graph_seconds(part.call, case.device)
    if isinstance(found, str):
        return replace(timing, graph_fault=found)
    return replace(timing, graph_seconds=found)
