"""One implementation of a rule, measured: anything that takes the operands by name and gives an output and a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from archsearch.dsl import Kind, Rule
from archsearch.kernels.bench.timing import copy_bandwidth, first_seconds, median_seconds
from archsearch.kernels.call import Result
from archsearch.kernels.conformance.inputs import Difficulty, Inputs, Shape, draw
from archsearch.kernels.conformance.verdict import Verdict
from archsearch.kernels.dispatch import CompiledRule, compile
from archsearch.kernels.ladder import values_agree
from archsearch.lowering import lower
from archsearch.lowering.cost import Cost, Sizes, cost

DRAWN = 256
"""Tokens that are drawn; longer sequences repeat them."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is timed: a batch of sequences, and a batch of single tokens. H key heads and as many value heads."""

    device: torch.device
    dtype: torch.dtype
    batch: int
    tokens: int
    heads: int
    key_dim: int
    value_dim: int
    step_batch: int

    @property
    def sizes(self) -> Sizes:
        """The sizes of the layer."""
        return Sizes(self.key_dim, self.value_dim, self.heads, self.heads, self.dtype.itemsize)

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"B {self.batch} x T {self.tokens}, H {self.heads}, K {self.key_dim}, V {self.value_dim}, {kind}"


@dataclass(frozen=True, slots=True)
class Timing:
    """One part. `floor_share`: the time that the plan's bytes need at the measured bandwidth, over the time taken.

    `peak_bytes`: memory above the inputs. Both on CUDA only. `first_seconds`: the first call, compilation included.
    """

    part: str
    seconds: float
    tokens_per_second: float
    floor_share: float | None
    peak_bytes: int | None
    first_seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """`path` says what ran. Without a passed `verdict` there are no timings."""

    rule: str
    path: str
    verdict: Verdict
    timings: tuple[Timing, ...]


class Forward(Protocol):
    """All tokens of a batch of sequences."""

    def __call__(self, tensors: Mapping[str, Tensor]) -> Result:
        """Output and final state."""
        ...


def case_here() -> Case:
    """A size that fills the machine at hand."""
    if torch.cuda.is_available():
        return Case(torch.device("cuda"), torch.bfloat16, 8, 4096, 16, 128, 128, step_batch=128)
    return Case(torch.device("cpu"), torch.float32, 2, 512, 4, 64, 64, step_batch=16)


def measure_rule(rule: Rule, case: Case) -> Measured:
    """Values first; a rule that fails them gets no timing."""
    compiled = compile(rule)
    path = f"archsearch, {'triton' if case.device.type == 'cuda' else 'torch'}"
    verdict = values_agree(rule, "auto", case.device, case.dtype)
    if not verdict.passed:
        return Measured(rule.name, path, verdict, ())
    inputs = inputs_of(rule, case)
    timings = time_sequences(
        lambda tensors: compiled(initial_state=None, scale=None, cu_seqlens=None, **tensors), inputs, rule, case
    )
    return Measured(rule.name, path, verdict, (*timings, _time_step(compiled, rule, case)))


def time_sequences(forward: Forward, inputs: Inputs, rule: Rule, case: Case) -> tuple[Timing, Timing]:
    """Forward alone, and forward with the backward of every operand."""
    spent = cost(lower(rule), case.sizes)
    signs = {operand.name for operand in rule.operands.values() if operand.kind is Kind.SIGN}
    leaves = {name: tensor.detach().requires_grad_(name not in signs) for name, tensor in inputs.tensors.items()}

    def alone() -> None:
        with torch.no_grad():
            forward(inputs.tensors)

    def both() -> None:
        result = forward(leaves)
        wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
        torch.autograd.grad(result.output, wanted, inputs.output_slope, allow_unused=True)

    tokens = case.batch * case.tokens
    return (
        _timing("forward", alone, tokens, spent.forward_bytes, case),
        _timing("forward + backward", both, tokens, spent.forward_bytes + spent.backward_bytes, case),
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


def _time_step(compiled: CompiledRule, rule: Rule, case: Case) -> Timing:
    shape = Shape(case.step_batch, 1, case.heads, case.heads, case.key_dim, case.value_dim)
    inputs = draw(lower(rule), shape, difficulty=Difficulty.EASY, dtype=case.dtype, device=case.device)
    token = {name: tensor[:, 0] for name, tensor in inputs.tensors.items()}
    spent: Cost = cost(lower(rule), case.sizes)

    def step() -> None:
        with torch.no_grad():
            compiled.step(state=inputs.initial_state, scale=None, **token)

    return _timing(f"step, batch {case.step_batch}", step, case.step_batch, spent.step_bytes, case)


def _timing(part: str, call: Callable[[], None], tokens: int, bytes_per_token: float, case: Case) -> Timing:
    first = first_seconds(call, case.device)
    peak = _peak_bytes(call, case.device)
    seconds = median_seconds(call, case.device)
    share = None
    if case.device.type == "cuda":
        share = tokens * bytes_per_token / copy_bandwidth(case.device) / seconds
    return Timing(part, seconds, tokens / seconds, share, peak, first)


def _peak_bytes(call: Callable[[], None], device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
