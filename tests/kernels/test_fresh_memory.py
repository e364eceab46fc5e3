"""Fresh memory is nothing to read: filled with NaN, every buffer gives the bits that it gives as it comes."""

import dataclasses
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import deterministic as deterministic_module

from archsearch.dsl import Kind, Rule
from archsearch.kernels.conformance import Shape
from archsearch.kernels.conformance.inputs import draw
from archsearch.kernels.dispatch import Memory, compile
from archsearch.kernels.triton import plan, stretches
from archsearch.kernels.triton import setup as setups
from archsearch.lowering import lower
from archsearch.mixers.zoo import rules

pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation:UserWarning"),
]
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
ODD = Shape(batch=2, tokens=75, heads=1, value_heads=2, key_dim=13, value_dim=19)
WIDE = Shape(batch=2, tokens=331, heads=2, value_heads=4, key_dim=60, value_dim=100)
SHAPE = WIDE if ON_GPU else ODD
OFFSETS = (0, 0, 30, 31, 31, 75)
deterministic: Any = deterministic_module


@contextmanager
def spoiled() -> Generator[None]:
    """Inside, torch fills all memory that it hands out with NaN, whoever asks and by whatever name."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = deterministic.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        deterministic.fill_uninitialized_memory = True
        assert torch.empty(3, device=DEVICE).isnan().all() and torch.ones(2, device=DEVICE).new_empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        deterministic.fill_uninitialized_memory = filled


def results(rule: Rule, shape: Shape, memory: Memory, offsets: Sequence[int] | None, *, ends: bool) -> list[Tensor]:
    """Output, final state, and every gradient; `ends`: from an initial state, with a gradient of the final one."""
    drawn = draw(lower(rule), shape, dtype=DTYPE, device=DEVICE).tensors
    signs = {operand.name for operand in rule.operands.values() if operand.kind is Kind.SIGN}
    leaves = {name: x.clone().requires_grad_(name not in signs) for name, x in drawn.items()}
    sequences = shape.batch if offsets is None else len(offsets) - 1
    size = dataclasses.replace(shape, batch=sequences).state_of(lower(rule))
    start = torch.full(size, 0.1, device=DEVICE).requires_grad_()
    found = compile(rule, "triton", memory=memory)(
        initial_state=start if ends else None,
        scale=None,
        cu_seqlens=None if offsets is None else torch.tensor(offsets, device=DEVICE),
        **leaves,
    )
    loss = found.output.float().square().sum() + (found.state.square().sum() if ends else 0)
    wanted = [x for x in (*leaves.values(), *([start] if ends else [])) if x.requires_grad]
    return [found.output, found.state, *torch.autograd.grad(loss, wanted)]


def same_when_spoiled(run: Callable[[], list[Tensor]]) -> None:
    clean = run()
    with spoiled():
        found = run()
    assert not any(tensor.isnan().any() for tensor in found)
    assert [torch.equal(one, other) for one, other in zip(found, clean, strict=True)] == [True] * len(clean)


@pytest.mark.parametrize("name", ["gated_delta_net", "q_delta", "eda_scalar", "gla", "mlstm"])
def test_odd_sizes_read_nothing_that_was_not_written(name: str) -> None:
    same_when_spoiled(lambda: results(rules[name], SHAPE, "fast", None, ends=name in ("q_delta", "gla", "mlstm")))


@pytest.mark.parametrize(("name", "memory"), [("gated_delta_net", "fast"), ("eda_scalar", "fast"), ("q_delta", "low")])
def test_packed_and_empty_sequences_read_nothing_that_was_not_written(name: str, memory: Memory) -> None:
    shape = dataclasses.replace(SHAPE, batch=1, tokens=OFFSETS[-1])
    same_when_spoiled(lambda: results(rules[name], shape, memory, OFFSETS, ends=True))


@pytest.mark.gpu
@pytest.mark.parametrize("name", rules)
def test_no_rule_reads_what_was_not_written(name: str) -> None:
    same_when_spoiled(lambda: results(rules[name], WIDE, "fast", None, ends=True))


@pytest.mark.gpu
@pytest.mark.parametrize("memory", ["fast", "low"])
@pytest.mark.parametrize("name", ["kda", "eda", "gated_delta_product"])
def test_no_mode_reads_what_was_not_written(name: str, memory: Memory) -> None:
    shape = dataclasses.replace(WIDE, batch=1)
    same_when_spoiled(lambda: results(rules[name], shape, memory, (0, 0, 130, 131, 131, 331), ends=True))
    same_when_spoiled(lambda: results(rules[name], WIDE, memory, None, ends=False))


@pytest.mark.parametrize("memory", ["fast", "low"])
def test_pieces_side_by_side_read_nothing_that_was_not_written(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(problem: plan.Problem, chunk_size: int | None) -> plan.Plan:
        return dataclasses.replace(plan.plan(problem, chunk_size), segments=2)

    for module in (setups, stretches):
        monkeypatch.setattr(module, "plan", cut)
    shape = dataclasses.replace(SHAPE, batch=1, tokens=150)
    _forget()
    same_when_spoiled(lambda: results(rules["gated_delta_net"], shape, memory, None, ends=False))
    _forget()


def _forget() -> None:
    setups.setup.cache_clear()
    stretches.cut_up.cache_clear()
