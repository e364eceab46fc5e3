"""What a rule's first call costs: in a process that finds empty caches, and in the next one, which finds them full."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

from archsearch.dsl import Rule
from archsearch.kernels.bench.apart import Broken, start
from archsearch.kernels.bench.case import Case
from archsearch.kernels.bench.measure import inputs_of, sequence_parts
from archsearch.kernels.bench.timing import first_seconds
from archsearch.kernels.bench.values import forward_of
from archsearch.kernels.dispatch import compile


@dataclass(frozen=True, slots=True)
class FirstCall:
    """Seconds of the imports, and after them of the first forward with its backward."""

    imports: float
    call: float


@dataclass(frozen=True, slots=True)
class Cold:
    """A rule's first calls, or why there is none."""

    rule: str
    case: Case
    empty: FirstCall | Broken
    filled: FirstCall | Broken


def measure_cold(rule: Rule, case: Case) -> Cold:
    """Two processes one after the other, sharing caches that are empty at first."""
    with tempfile.TemporaryDirectory(prefix="archsearch-cold-") as empty:
        caches = {
            "TRITON_CACHE_DIR": str(Path(empty, "triton")),
            "ARCHSEARCH_CACHE": str(Path(empty, "generated")),
        }
        first, second = (start(first_call, (rule, case), caches).result() for _ in range(2))
    return Cold(rule.name, case, first, second)


def first_call(rule: Rule, case: Case) -> FirstCall:
    """The first forward with backward of this process; device, torch's own backward and inputs are ready before.

    Torch imports half a thousand modules at a process's first backward, whatever it is the backward of.
    """
    inputs = inputs_of(rule, case)
    leaf = torch.zeros(1, device=case.device, requires_grad=True)
    torch.autograd.grad(2 * leaf, leaf, torch.ones_like(leaf))
    begun = time.perf_counter()
    if case.device.type == "cuda":
        torch.cuda.synchronize(case.device)
        import_module("archsearch.kernels.triton.operation")
    compiled, ready = compile(rule), time.perf_counter()
    _, both = sequence_parts(forward_of(compiled), inputs, rule, case)
    return FirstCall(ready - begun, first_seconds(both.call, case.device))
