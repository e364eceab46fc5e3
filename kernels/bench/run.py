"""The order of a bench: peers compiled ahead, then every rule alone on the device, its peers after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from archsearch.dsl import Rule
from archsearch.kernels.bench.ahead import compile_ahead
from archsearch.kernels.bench.beside import measure_apart
from archsearch.kernels.bench.cold import measure_cold
from archsearch.kernels.bench.measure import measure_rule
from archsearch.kernels.bench.peers import peers_of, why_no_peers
from archsearch.kernels.bench.report import Benched

Status = Callable[[str], AbstractContextManager[object]]


def run(rules: Sequence[Rule], control: Rule, found: Benched, *, peers: bool, status: Status) -> Iterator[Benched]:
    """`found` with more in it after every measurement. The control is timed first, without peers unless it is one of
    `rules`.
    """
    cases = found.cases
    missing = why_no_peers(cases[0]) if peers else "peers were not asked for"
    jobs = [] if missing else [(peer, rule) for rule in rules for peer in peers_of(rule)]
    if missing:
        found = replace(found, notes=(*found.notes, missing))
    if jobs:
        with status(f"compiling {len(jobs)} peers"):
            found = replace(found, notes=(*found.notes, *compile_ahead(jobs, cases)))
    for rule in (control, *(rule for rule in rules if rule != control)):
        with status(f"timing {rule.name}"):
            found = found.with_measured(measure_rule(rule, cases))
        yield found
        if rule in rules and cases[0].device.type == "cuda":
            with status(f"first calls of {rule.name}"):
                found = found.with_cold(measure_cold(rule, cases[0]))
            yield found
        for peer, of in jobs:
            if of == rule:
                with status(f"timing {peer.label} beside {rule.name}"):
                    found = found.with_measured(measure_apart(peer, rule, cases))
                yield found
