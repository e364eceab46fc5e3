"""A peer measured: in a process of its own, its values first, and what really ran told beside its name."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version

from archsearch.dsl import Rule
from archsearch.errors import described
from archsearch.kernels.bench.apart import Broken, start
from archsearch.kernels.bench.case import Case
from archsearch.kernels.bench.measure import (
    Measured,
    Part,
    count,
    inputs_of,
    sequence_parts,
    time_parts,
    without_speed,
)
from archsearch.kernels.bench.peers import Peer
from archsearch.kernels.bench.values import agrees_at
from archsearch.kernels.conformance.inputs import Inputs
from archsearch.kernels.conformance.verdict import Verdict
from archsearch.lowering.cost import Sizes

UNCHECKED = Verdict("values_unchecked", 0.0, 0.0)


def measure_apart(peer: Peer, rule: Rule, cases: Sequence[Case]) -> tuple[Measured, ...]:
    """`measure_peer` in a fresh process with the peer's environment; one that takes its process down is told so."""
    found = start(measure_peer, (peer, rule, tuple(cases)), dict(peer.environment)).result()
    return _broken(peer, rule, cases, found.reason) if isinstance(found, Broken) else found


def measure_peer(peer: Peer, rule: Rule, cases: Sequence[Case]) -> tuple[Measured, ...]:
    """A peer at every size, its values looked at once a layer; one that raises is told with what it raised, and without
    a speed.
    """
    verdicts: dict[Sizes, Verdict] = {}
    parts: dict[Case, tuple[Part, ...]] = {}
    with handed_on() as path:
        try:
            force(peer)
            for case in cases:
                inputs = inputs_of(rule, case)
                if case.sizes not in verdicts:
                    verdicts[case.sizes] = verdict_of(peer, rule, inputs, case)
                if verdicts[case.sizes].passed:
                    parts[case] = parts_of(peer, rule, inputs, case)
            timings = time_parts(parts)
            label = _label(peer, path)
            found = tuple(
                Measured(rule.name, peer.role, label, case, verdicts[case.sizes], timings.get(case, ()))
                for case in cases
            )
            return count(found, parts)
        except Exception as fault:  # foreign code: whatever it raises is its result here
            return _broken(peer, rule, cases, described(fault))


def verdict_of(peer: Peer, rule: Rule, inputs: Inputs, case: Case) -> Verdict:
    """Its values against the rule's where they must agree: whether it computes the rule, not how well it rounds."""
    if not peer.checked:
        return UNCHECKED
    return agrees_at(peer.forward, rule, inputs, case, gradients=peer.gradients, hard=True)


def parts_of(peer: Peer, rule: Rule, inputs: Inputs, case: Case) -> tuple[Part, Part]:
    """What is timed: the peer on operands in its own form, whose making is not counted."""
    prepared = {name: tensor.detach().contiguous() for name, tensor in peer.prepared(inputs.tensors).items()}
    own = replace(inputs, tensors=prepared, output_slope=peer.spread(inputs.output_slope))
    return sequence_parts(peer.call, own, rule, case)


def force(peer: Peer) -> None:
    """Set what the peer's entry says must be set."""
    if peer.forced is not None:
        module, name, value = peer.forced
        setattr(import_module(module), name, value)


@contextmanager
def handed_on() -> Generator[list[str]]:
    """What flash-linear-attention logs of the kernels that it hands work on to: "chunk_bwd_dqkwg -> tilelang"."""
    found: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage().rpartition("] ")[2]
            found.extend([text] if " -> " in text and "rejected" not in text else [])

    log, listener = logging.getLogger("fla.backends"), Listener()
    level = log.level
    log.addHandler(listener)
    log.setLevel(logging.INFO)
    try:
        yield found
    finally:
        log.removeHandler(listener)
        log.setLevel(level)


def _label(peer: Peer, path: Sequence[str]) -> str:
    told = [peer.label, *dict.fromkeys(path), *([peer.remark] if peer.remark else [])]
    if any("tilelang" in text for text in path) or peer.package == "flash-qla":
        told.insert(1, f"tilelang {version('tilelang')}")
    return "; ".join(told)


def _broken(peer: Peer, rule: Rule, cases: Sequence[Case], reason: str) -> tuple[Measured, ...]:
    return without_speed(rule, peer.role, _label(peer, ()), cases, reason)
