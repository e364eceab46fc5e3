"""Kernels compiled ahead: all of them at once, on every core, so that timing one alone afterwards takes seconds.

The autotuners of peers compile dozens of variants one after the other, some for minutes. Here several processes share
the variants and keep nothing but compiled code: which variant is fastest is found later, by a peer that has the device
to itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from archsearch.dsl import Rule
from archsearch.errors import described
from archsearch.kernels.bench.apart import Broken, Running, start
from archsearch.kernels.bench.beside import force, parts_of
from archsearch.kernels.bench.case import Case
from archsearch.kernels.bench.measure import inputs_of, verdicts_of
from archsearch.kernels.bench.peers import Peer

MOST = 8
"""Processes a peer: each holds inputs and what a backward keeps; 16 of a doubled sequence filled an H200."""


@dataclass(frozen=True, slots=True)
class Share:
    """The `part`-th of `parts` shares of a peer's variants."""

    part: int
    parts: int


def compile_ahead(rules: Sequence[Rule], jobs: Sequence[tuple[Peer, Rule]], cases: Sequence[Case]) -> tuple[str, ...]:
    """Compile what some rules and their peers need at some sizes; what went wrong with peers, a line each.

    A fault here costs time later and nothing else: rules of ours are told of when they are timed.
    """
    cores = len(os.sched_getaffinity(0))
    parts = min(MOST, max(1, cores // max(1, len(jobs))))
    shares = min(len(cases), max(1, cores // len(rules)))
    ours = [start(verdicts_of, (rule, tuple(cases[i::shares]))) for rule in rules for i in range(shares)]
    running: list[tuple[Peer, Running[None]]] = []
    for peer, rule in jobs:
        for part in range(parts):
            share = Share(part, parts)
            work = (peer, rule, _cases_of(peer, cases, share), share)
            running.append((peer, start(_compile, work, dict(peer.environment))))
    faults = [(peer, each.result()) for peer, each in running]
    for each in ours:
        each.result()
    said = (f"{peer.label}: compiling ahead: {fault.reason}" for peer, fault in faults if isinstance(fault, Broken))
    return tuple(dict.fromkeys(said))


def _cases_of(peer: Peer, cases: Sequence[Case], share: Share) -> tuple[Case, ...]:
    """Sizes that differ in code: in heads, whose variants are shared out so that every process meets all of them; and
    in batch, which go to one process each. All go to one each where nothing is tuned.

    All begin with the size that is timed first: a kernel whose choice does not depend on the heads is tuned there.
    """
    codes = {(case.batch, case.heads): case for case in reversed(cases)}
    sizes = sorted(codes.values(), key=cases.index)
    met = [case for i, case in enumerate(sizes) if peer.tuned and case.heads not in {each.heads for each in sizes[:i]}]
    rest = [case for case in sizes if case not in met]
    return (*met, *rest[share.part :: share.parts])


def _compile(peer: Peer, rule: Rule, cases: Sequence[Case], share: Share) -> None:
    _share_variants(share)
    force(peer)
    faults: list[str] = []
    for case in cases:
        for part in parts_of(peer, rule, inputs_of(rule, case), case):
            try:
                part.call()
            except Exception as fault:  # foreign code; the other parts may still compile
                faults.append(described(fault))
    if faults:
        raise RuntimeError("; ".join(dict.fromkeys(faults)))


def _share_variants(share: Share) -> None:
    """Have Triton's autotuner compile this process's share of the variants and run the first that can run."""
    from triton.runtime.autotuner import Autotuner

    tuner = cast("Any", Autotuner)
    done: set[tuple[int, str]] = set()

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        variants = list(self.prune_configs(kwargs)) if len(self.configs) > 1 else list(self.configs)
        mine = variants[share.part :: share.parts]
        key = (id(self), str([kwargs.get(name, self.nargs.get(name)) for name in self.keys]))
        if key not in done:
            done.add(key)
            for variant in mine:
                _attempt(lambda at=variant: self.fn.run(*args, **{**kwargs, "warmup": True, **at.all_kwargs()}))
        found: object = None
        for variant in (*mine, *variants):
            found = _attempt(lambda at=variant: self.fn.run(*args, **{**kwargs, **at.all_kwargs()}))
            if not isinstance(found, Broken):
                return found
        raise RuntimeError(f"no variant of {self.base_fn.__name__} can run: {found}")

    tuner.run = run


def _attempt(call: Callable[[], object]) -> object:
    """What the call returns; a variant that cannot be compiled or launched is no fault, autotuners skip it."""
    try:
        return call()
    except Exception as fault:
        return Broken(described(fault))
