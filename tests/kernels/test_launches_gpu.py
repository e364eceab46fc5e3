"""What the operation launches on a device where launches are what a step takes: the sizes that studies train."""

import pytest
import torch
from torch import Tensor

from archsearch.kernels.bench.case import Case
from archsearch.kernels.bench.measure import inputs_of, sequence_parts
from archsearch.kernels.bench.timing import launches
from archsearch.kernels.bench.values import forward_of
from archsearch.kernels.dispatch import compile
from archsearch.mixers.zoo import rules

pytestmark = pytest.mark.gpu

MOST = 8
"""Launches of a forward with its backward."""
SMALL = Case(torch.device("cuda"), torch.bfloat16, 64, 256, 2, 64, 64, step_batch=1)


@pytest.mark.parametrize("name", ["gated_delta_net", "q_delta", "eda_scalar"])
def test_forward_and_backward_take_few_launches(name: str) -> None:
    _, both = sequence_parts(forward_of(compile(rules[name])), inputs_of(rules[name], SMALL), rules[name], SMALL)
    both.call()
    found = launches(both.call, SMALL.device)
    if found is None:
        pytest.skip("gpu: its launches cannot be counted here: torch's profiler sees none")
    assert found <= MOST


@pytest.mark.parametrize("name", ["gated_delta_net", "q_delta", "kda"])
def test_the_operation_can_be_captured(name: str) -> None:
    """Replayed over operands that changed in place, with the bits of an eager call."""
    call = forward_of(compile(rules[name]))
    given = {n: x.detach().requires_grad_() for n, x in inputs_of(rules[name], SMALL).tensors.items()}

    def both() -> list[Tensor]:
        output = call(given)
        return [output.detach(), *torch.autograd.grad(output, list(given.values()), torch.ones_like(output))]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = both()
    with torch.no_grad():
        for tensor in given.values():
            tensor.copy_(tensor.flip(1))
    graph.replay()
    assert [torch.equal(one, other) for one, other in zip(found, both(), strict=True)] == [True] * len(found)
