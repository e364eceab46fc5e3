"""Rows of the validity ladder that need a layer or the zoo: that every path learns, and what the rule costs.

`archsearch check` hands them to `archsearch.kernels.ladder.climb`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from archsearch.dsl import Rule
from archsearch.kernels.bench.case import Case, case_here
from archsearch.kernels.bench.measure import inputs_of, sequence_parts
from archsearch.kernels.bench.timing import median_seconds, peak_bytes
from archsearch.kernels.bench.values import forward_of
from archsearch.kernels.conformance.verdict import Verdict
from archsearch.kernels.dispatch import Backend, compile
from archsearch.kernels.ladder import Check, stays_in_range
from archsearch.lowering import lower
from archsearch.lowering.cost import Sizes, cost
from archsearch.mixers.layer.fed import as_fed
from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.layer.planning import layer_of
from archsearch.mixers.zoo import rules

CONTROL = "gated_delta_net"
MOST_TIME, MOST_MEMORY = 3.0, 4.0
"""Of a rule, as multiples of the control's."""
BATCHES = 3
WIDTH, HEADS, TOKENS = 64, 2, 40


def checks(rule: Rule, backend: Backend, fed: Rule | None = None) -> tuple[Check, ...]:
    """Rows 7 and 11 of a rule, and row 8 where its layer makes one of its addresses of another.

    fed: the rule as its layer feeds it; None is by the paper's layer for a rule of the zoo, else by `Layer()`.
    """
    fed = as_fed(rule, layer_of(rule, None)) if fed is None else fed
    return (
        Check(7, "every path learns", lambda: (live_paths(rule, backend),)),
        *([] if fed is rule else [_in_range(fed, backend)]),
        Check(11, f"cost beside {CONTROL}", lambda: costs(rule)),
    )


def _in_range(fed: Rule, backend: Backend) -> Check:
    """Row 8 of a rule as its layer feeds it."""
    check = stays_in_range(fed, backend)
    return replace(
        check, measure=lambda: [replace(v, where=f"{v.where}; as the layer feeds it") for v in check.measure()]
    )


def live_paths(rule: Rule, backend: Backend = "auto") -> Verdict:
    """Every parameter of the rule's layer gets finite gradients, and on some batch one that is not zero; the error
    counts those that do not. A step between batches leaves what starts at zero behind.
    """
    device = torch.device("cuda" if torch.cuda.is_available() and backend in ("auto", "triton") else "cpu")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        mixer = Mixer(rule, WIDTH, HEADS, backend=backend).to(device)
        optimiser = torch.optim.SGD(mixer.parameters(), lr=0.01)
        live, broken = set[str](), set[str]()
        for _ in range(BATCHES):
            x, slope = torch.randn(2, 2, TOKENS, WIDTH).to(device)
            optimiser.zero_grad(set_to_none=False)
            (mixer(x) * slope).sum().backward()
            gradients = _gradients(mixer)
            live |= {name for name, gradient in gradients.items() if bool(gradient.any())}
            broken |= {name for name, gradient in gradients.items() if not bool(gradient.isfinite().all())}
            optimiser.step()
    names = _gradients(mixer)
    found = [name for name in names if name not in live or name in broken]
    where = f"never learns: {', '.join(found)}" if found else f"{len(names)} parameters of a layer"
    return Verdict("every_path_learns", float(len(found)), 0.0, where)


def _gradients(mixer: Mixer) -> dict[str, Tensor]:
    """The gradient of every parameter by name, that of the projection by what its rows are for."""
    found = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in mixer.named_parameters()
    }
    rows = {f"projection of {part.name}": part.inputs for part in mixer.plan.parts if part.inputs}
    rows |= {"projection of the output gate": mixer.plan.gate_inputs} if mixer.plan.gate_inputs else {}
    pieces = cast("tuple[Tensor, ...]", found.pop("projection").split(list(rows.values())))
    return {**dict(zip(rows, pieces, strict=True)), **found}


def costs(rule: Rule) -> tuple[Verdict, ...]:
    """Time and memory of forward and backward as multiples of the control's at the same shape: measured on a CUDA
    device; elsewhere counted, since the time of a CPU says nothing of the kernels.
    """
    control = rules[CONTROL]
    if not torch.cuda.is_available():
        return _counted(rule, control)
    case = case_here()
    (time, memory), (usual_time, usual_memory) = _measured(rule, case), _measured(control, case)
    return (
        Verdict("time", time / usual_time, MOST_TIME, f"time, {case}"),
        Verdict("memory", memory / usual_memory, MOST_MEMORY, f"memory, {case}"),
    )


def _measured(rule: Rule, case: Case) -> tuple[float, float]:
    both = sequence_parts(forward_of(compile(rule)), inputs_of(rule, case), rule, case)[1]
    both.call()
    return median_seconds(both.call, case.device), float(peak_bytes(both.call, case.device) or 1)


def _counted(rule: Rule, control: Rule) -> tuple[Verdict, ...]:
    own, usual = (cost(lower(each), Sizes()) for each in (rule, control))
    bytes_moved = own.training_bytes / usual.training_bytes
    flops, memory = own.chunkwise_flops / usual.chunkwise_flops, own.state_bytes / usual.state_bytes
    return (
        Verdict("bytes", bytes_moved, MOST_TIME, "bytes moved, counted"),
        Verdict("flops", flops, MOST_TIME, "FLOPs, counted"),
        Verdict("state", memory, MOST_MEMORY, "bytes of state, counted"),
    )
