"""Kernels touch their tensors and nothing beside them: each address that the interpreter is asked for is looked up."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter

from archsearch.dsl import Kind, Rule
from archsearch.kernels.conformance import Shape
from archsearch.kernels.conformance.inputs import draw
from archsearch.kernels.dispatch import compile
from archsearch.kernels.triton import setup as setups
from archsearch.lowering import lower
from archsearch.mixers.zoo import rules

pytestmark = [pytest.mark.usefixtures("interpreted"), pytest.mark.interpreter]
ODD = Shape(batch=2, tokens=37, heads=1, value_heads=2, key_dim=13, value_dim=19)
EVEN = Shape(batch=2, tokens=64, heads=2, value_heads=2, key_dim=32, value_dim=32)
OFFSETS = (0, 0, 30, 31, 31, 74)
H200 = 132
"""Processors, for the plan that its kernels have."""


class Watched:
    """Triton's interpreted memory, and what was asked for `outside` the tensors of the kernel at work: the kernel and
    how many bytes beyond an end. Tensors are taken to end `short` bytes early.
    """

    def __init__(self, memory: Any) -> None:
        self.memory, self.kernel, self.short = memory, "", 0
        self.ranges: list[tuple[int, int]] = []
        self.outside: list[tuple[str, int]] = []

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self.look(pointers, mask, np.dtype(dtype).itemsize)
        return self.memory.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, value: Any, mask: Any) -> Any:
        self.look(pointers, mask, value.dtype.itemsize)
        return self.memory.store(pointers, value, mask)

    def look(self, pointers: Any, mask: Any, size: int) -> None:
        asked = pointers[mask.astype(bool)].astype(np.int64)
        inside = np.zeros(asked.shape, bool)
        for start, end in self.ranges:
            inside |= (start <= asked) & (asked + size <= end)
        for address in asked[~inside].tolist():
            beyond = min((address + size - end for _, end in self.ranges if address >= end - size), default=0)
            self.outside.append((self.kernel, beyond))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    found = Watched(interpreter._interpreter)
    call = interpreter.GridExecutor.__call__

    def launch(self: Any, *arguments: Any, **named: Any) -> Any:
        given = [getattr(each, "base", each) for each in (*arguments, *named.values())]
        tensors = [each for each in given if isinstance(each, Tensor)]
        found.kernel = self.fn.__name__
        found.ranges = [(each.data_ptr(), each.data_ptr() + reach(each) - found.short) for each in tensors]
        return call(self, *arguments, **named)

    monkeypatch.setattr(interpreter, "_interpreter", found)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch)
    monkeypatch.setattr(setups, "processors", lambda _: H200)
    return found


def reach(tensor: Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0


def there_and_back(rule: Rule, shape: Shape, offsets: tuple[int, ...] | None, dtype: torch.dtype) -> None:
    drawn = draw(lower(rule), shape, dtype=dtype).tensors
    signs = {operand.name for operand in rule.operands.values() if operand.kind is Kind.SIGN}
    leaves = {name: x.clone().requires_grad_(name not in signs) for name, x in drawn.items()}
    sequences = shape.batch if offsets is None else len(offsets) - 1
    start = torch.full((sequences, *shape.state_of(lower(rule))[1:]), 0.1).requires_grad_()
    packed = None if offsets is None else torch.tensor(offsets)
    found = compile(rule, "triton")(initial_state=start, scale=None, cu_seqlens=packed, **leaves)
    loss = found.output.float().square().sum() + found.state.square().sum()
    torch.autograd.grad(loss, [start, *(x for x in leaves.values() if x.requires_grad)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [ODD, EVEN], ids=["odd", "even"])
@pytest.mark.parametrize("name", ["gated_delta_net", "q_delta", "eda", "gla", "gated_delta_product", "comba"])
def test_no_kernel_leaves_its_tensors(name: str, shape: Shape, dtype: torch.dtype, watched: Watched) -> None:
    there_and_back(rules[name], shape, None, dtype)
    assert watched.outside == []


@pytest.mark.parametrize("name", ["gated_delta_net", "eda_scalar", "kda"])
def test_no_kernel_leaves_packed_tensors(name: str, watched: Watched) -> None:
    there_and_back(rules[name], dataclasses.replace(ODD, batch=1, tokens=OFFSETS[-1]), OFFSETS, torch.float32)
    assert watched.outside == []


def test_what_is_outside_is_seen(watched: Watched) -> None:
    watched.short = 4
    there_and_back(rules["gated_delta_net"], ODD, None, torch.float32)
    assert {"solve", "scan", "reverse", "gradients"} <= {kernel for kernel, _ in watched.outside}
