"""The order of a bench: everything compiled ahead, then every rule alone on the device, its peers after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from archsearch.dsl import Rule
from archsearch.kernels.bench.ahead import compile_ahead
from archsearch.kernels.bench.beside import measure_apart
from archsearch.kernels.bench.cold import measure_cold
from archsearch.kernels.bench.measure import Measured, Role, count_ours, measure_rule
from archsearch.kernels.bench.peers import peers_of, why_no_peers
from archsearch.kernels.bench.report import Benched
from archsearch.kernels.bench.timing import give_back

Status = Callable[[str], AbstractContextManager[object]]


def run(
    rules: Sequence[Rule], control: Rule, found: Benched, *, peers: bool, cold: bool, status: Status
) -> Iterator[Benched]:
    """`found` with more in it after every measurement. The control is timed first, and without peers or first calls
    unless it is one of `rules`.
    """
    cases = found.cases
    missing = why_no_peers(cases[0]) if peers else None
    jobs = [(peer, rule) for rule in rules for peer in peers_of(rule)] if peers and not missing else []
    if missing:
        found = replace(found, notes=(*found.notes, missing))
    every = (control, *(rule for rule in rules if rule != control))
    if cases[0].device.type == "cuda":
        with status(f"compiling {len(every)} rules and {len(jobs)} peers"):
            found = replace(found, notes=(*found.notes, *compile_ahead(every, jobs, cases)))
    for rule in every:
        with status(f"timing {rule.name}"):
            found = found.with_measured(measure_rule(rule, cases))
        give_back()
        yield found
        if cold and rule in rules and cases[0].device.type == "cuda":
            with status(f"first calls of {rule.name}"):
                found = found.with_cold(measure_cold(rule, cases[0]))
            yield found
        for peer, of in jobs:
            if of == rule:
                with status(f"timing {peer.label} beside {rule.name}"):
                    found = found.with_measured(measure_apart(peer, rule, cases))
                yield found
    if cases[0].device.type == "cuda":
        with status("counting launches"):
            yield _counted(every, found)


def _counted(rules: Sequence[Rule], found: Benched) -> Benched:
    """With the launches of ours."""
    measured = found.measured
    for rule in rules:
        more = iter(count_ours(rule, [each for each in measured if _is_of(rule, each)]))
        measured = tuple(next(more) if _is_of(rule, each) else each for each in measured)
    return replace(found, measured=measured)


def _is_of(rule: Rule, each: Measured) -> bool:
    return each.role is Role.OURS and each.rule == rule.name
