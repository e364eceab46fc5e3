"""Kernels that others wrote by hand, timed beside ours where they are installed: what each computes, how it is called.

Only flash-linear-attention is known here. Its values are held against our token loop before its speed is told. Its
functions take [B, T, H, K] by keyword and use K ** -0.5 on the read, as ours do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

import torch
from torch import Tensor

from archsearch.dsl import Rule
from archsearch.kernels.bench.measure import Case, Measured, inputs_of, time_sequences
from archsearch.kernels.call import Result
from archsearch.kernels.conformance.setting import relative_error
from archsearch.kernels.conformance.tolerances import Quantity, bound
from archsearch.kernels.conformance.verdict import Verdict
from archsearch.kernels.dispatch import compile

NAME = "peer_matches_token_loop"


@dataclass(frozen=True, slots=True)
class Peer:
    """A function of flash-linear-attention and the operands it takes."""

    module: str
    function: str
    operands: tuple[str, ...]

    def __call__(self, tensors: Mapping[str, Tensor]) -> Result:
        """Output and final state of its kernel."""
        function = getattr(import_module(self.module), self.function)
        output, state = function(output_final_state=True, **tensors)
        return Result(output, state)


PEERS = {
    "simple_gla": Peer("fla.ops.simple_gla", "chunk_simple_gla", ("q", "k", "v", "g")),
    "gla": Peer("fla.ops.gla", "chunk_gla", ("q", "k", "v", "g")),
    "delta_net": Peer("fla.ops.delta_rule", "chunk_delta_rule", ("q", "k", "v", "beta")),
    "gated_delta_net": Peer("fla.ops.gated_delta_rule", "chunk_gated_delta_rule", ("q", "k", "v", "g", "beta")),
    "kda": Peer("fla.ops.kda", "chunk_kda", ("q", "k", "v", "g", "beta")),
}


def why_no_peers(case: Case) -> str | None:
    """The reason why no peer is timed; None where there is one."""
    if case.device.type != "cuda":
        return "peers run on a CUDA device only"
    return None if find_spec("fla") else "no peer is installed (pip install flash-linear-attention)"


def measure_peer(rule: Rule, case: Case) -> Measured | None:
    """The peer of a rule, by the rule's name and operands; None where there is none.

    One that raises is told with what it raised, and without a speed.
    """
    peer = PEERS.get(rule.name)
    if peer is None or set(peer.operands) != set(rule.operands):
        return None
    try:
        verdict = _verdict(peer, rule, replace(case, batch=1, tokens=200, heads=2))
        timed = time_sequences(peer, inputs_of(rule, case), rule, case) if verdict.passed else ()
    except Exception as fault:  # foreign code: whatever it raises is its result here
        return Measured(
            rule.name, _path(peer), Verdict(NAME, float("nan"), 0.0, f"{type(fault).__name__}: {fault}"), ()
        )
    return Measured(rule.name, _path(peer), verdict, timed)


def _verdict(peer: Peer, rule: Rule, case: Case) -> Verdict:
    inputs = inputs_of(rule, case)
    double = {name: tensor.double() for name, tensor in inputs.tensors.items()}
    expected = compile(rule, "reference")(initial_state=None, scale=None, cu_seqlens=None, **double)
    with torch.no_grad():
        error = relative_error(peer(inputs.tensors).output, expected.output)
    return Verdict(NAME, error, bound(case.dtype, Quantity.VALUE), "output")


def _path(peer: Peer) -> str:
    """Package, version and function, and what it may hand its work on to."""
    text = f"fla {version('flash-linear-attention')}, {peer.function}"
    if peer.function == "chunk_gated_delta_rule" and find_spec("flash_qla") and os.environ.get("FLA_FLASH_QLA") != "0":
        return f"{text}, which hands on to flash_qla {version('flash-qla')}"
    return f"{text}{', tilelang backward' if find_spec('tilelang') else ''}"
