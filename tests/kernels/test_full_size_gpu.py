"""Full size on a CUDA device: bits that repeat, which a race in a pipelined loop does not leave alone and no tolerance
sees, and tensors of more than 2^31 elements.
"""

import fcntl
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from archsearch.dsl import Kind, Rule
from archsearch.kernels.conformance import Shape
from archsearch.kernels.dispatch import Memory, compile
from archsearch.lowering import lower
from archsearch.mixers.zoo import rules

pytestmark = pytest.mark.gpu

RUNS = 10
DEVICE = torch.device("cuda")
SIZES = ((8, 4096), (1, 32768))
NAMES = ("gated_delta_net", "q_delta", "eda_scalar", "kda", "eda", "gla", "simple_gla")
REPEATED = [*((name, "fast") for name in NAMES), ("gated_delta_net", "low"), ("q_delta", "low")]
MOST = 72 * 2**30
"""Bytes that the largest test may hold, so that others have room beside it: kda has log decays a channel in float32."""
SEQUENCES, LENGTH, ALONE = 257, 4096, 9
"""257 x 4096 x 16 x 128 is more than 2^31; nine sequences have the plan of many, and can be held apart."""


@pytest.fixture(autouse=True)
def given_back() -> Generator[None]:
    """Processes share the device: what a test held is handed back."""
    yield
    torch.cuda.empty_cache()


def drawn(rule: Rule, batch: int, tokens: int) -> dict[str, Tensor]:
    """Operands at H = 16, K = V = 128 as a trained layer makes them; log decays float32, the rest bfloat16."""
    shape, generator = Shape(batch, tokens, 16, 16, 128, 128), torch.Generator(DEVICE).manual_seed(0)
    tensors: dict[str, Tensor] = {}
    for operand in lower(rule).operands:
        kind = torch.float32 if operand.kind is Kind.LOG_DECAY else torch.bfloat16
        x = torch.empty(shape.of(operand), device=DEVICE, dtype=kind).normal_(generator=generator)
        if operand.is_address:
            x = normalize(x, dim=-1)
        elif operand.kind is Kind.LOG_DECAY:
            x = logsigmoid(x + 3)
        elif operand.kind is not Kind.VALUE:
            x = x.sigmoid()
        tensors[operand.name] = x
    return tensors


def outcome(rule: Rule, memory: Memory, tensors: Mapping[str, Tensor], slope: Tensor) -> list[Tensor]:
    """Output, final state, and the gradient of every operand."""
    leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    found = compile(rule, "triton", memory=memory)(initial_state=None, scale=None, cu_seqlens=None, **leaves)
    gradients = torch.autograd.grad(found.output, list(leaves.values()), slope)
    return [found.output.detach(), found.state.detach(), *gradients]


def spoil_free_memory() -> None:
    """A kernel that reads what it never wrote meets NaN instead of the numbers of an earlier run."""
    spoiled = [torch.full((2**26 >> shift,), float("nan"), device=DEVICE) for shift in range(12)]
    del spoiled


@contextmanager
def one_at_a_time(path: Path) -> Generator[None]:
    """No two processes of a distributed run are inside at once."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def many(x: Tensor) -> Tensor:
    """`x` [9, ...] over and over, [257, ...], its own rows the last."""
    return x.repeat(-(-SEQUENCES // ALONE), *(1 for _ in x.shape[1:]))[-SEQUENCES:]


@pytest.mark.parametrize(("name", "memory"), [("gated_delta_net", "fast"), ("q_delta", "low"), ("kda", "low")])
def test_more_than_two_to_the_31_elements_are_told_apart(
    name: str, memory: Memory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rule = rules[name]
    tensors = drawn(rule, ALONE, LENGTH)
    alone = outcome(rule, memory, tensors, tensors["v"])
    with one_at_a_time(tmp_path_factory.getbasetemp().parent / "most-of-the-memory"):
        hold_many(rule, memory, tensors, alone)
        torch.cuda.empty_cache()


def hold_many(rule: Rule, memory: Memory, tensors: Mapping[str, Tensor], alone: list[Tensor]) -> None:
    """The same sequences among many: the bits of those at either end."""
    together = {n: many(x) for n, x in tensors.items()}
    assert together["q"].numel() > 2**31
    torch.cuda.reset_peak_memory_stats()
    found = outcome(rule, memory, together, together["v"])
    for one, other in zip(found, alone, strict=True):
        assert torch.equal(one[-ALONE:], other)
        assert torch.equal(one[:ALONE], other.roll(-(-SEQUENCES % ALONE), 0))
    assert torch.cuda.max_memory_allocated() < MOST


@pytest.mark.parametrize(("batch", "tokens"), SIZES)
@pytest.mark.parametrize(("name", "memory"), REPEATED)
def test_ten_runs_have_the_same_bits(name: str, memory: Memory, batch: int, tokens: int) -> None:
    tensors = drawn(rules[name], batch, tokens)
    first = outcome(rules[name], memory, tensors, tensors["v"])
    for _ in range(RUNS - 1):
        spoil_free_memory()
        found = outcome(rules[name], memory, tensors, tensors["v"])
        assert [torch.equal(one, other) for one, other in zip(found, first, strict=True)] == [True] * len(first)
