"""The same call twice gives the same bits: what tolerance tests cannot see, a race shows here."""

from __future__ import annotations

import torch

from archsearch.kernels.conformance.setting import Outcome, Setting, differentiate
from archsearch.kernels.conformance.verdict import Verdict

RUNS = {"cuda": 10, "cpu": 2}


def repeats_are_bitwise(setting: Setting) -> Verdict:
    """Values and gradients of repeated runs, in fresh memory full of NaN where the device caches it; the error counts
    the runs that differ.
    """
    name, inputs, compiled = "repeats_are_bitwise", setting.inputs(), setting.compiled(setting.chunk_sizes[1])
    first = differentiate(compiled, inputs)
    runs = RUNS.get(setting.device.type, 2)
    differing = 0
    for _ in range(runs - 1):
        _spoil_free_memory(setting, inputs.initial_state.numel() * 64)
        differing += not _same(differentiate(compiled, inputs), first)
    return Verdict(name, float(differing), 0.0, f"{runs} runs")


def _spoil_free_memory(setting: Setting, numbers: int) -> None:
    """A kernel that reads what it never wrote meets NaN instead of the zeros of an earlier run."""
    if setting.device.type == "cuda":
        spoiled = [torch.full((numbers >> shift,), float("nan"), device=setting.device) for shift in range(8)]
        del spoiled


def _same(x: Outcome, y: Outcome) -> bool:
    pairs = [
        (x.output, y.output),
        (x.state, y.state),
        *((x.gradients[name], y.gradients[name]) for name in x.gradients),
    ]
    return all(torch.equal(a, b) for a, b in pairs)
