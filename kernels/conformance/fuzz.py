"""Many random rules, each against the token loop: `python -m archsearch.kernels.conformance.fuzz --help`.

A rule on which a backend fails is shrunk to the smallest that still fails, and printed as code. Shrinking is
hypothesis's, which nothing else outside the tests needs.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, cast

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from archsearch.dsl import Rule
from archsearch.errors import RuleError
from archsearch.kernels.conformance.inputs import Difficulty
from archsearch.kernels.conformance.random_rules import Option, wider_rule
from archsearch.kernels.conformance.sensitivity import Sensitivity
from archsearch.kernels.conformance.setting import quantity_of, token_loop
from archsearch.kernels.conformance.suite import interpreted_sizes, run_conformance, setting_of
from archsearch.kernels.conformance.tolerances import MOST_WIDENED
from archsearch.kernels.conformance.verdict import Verdict
from archsearch.kernels.dispatch import Backend

AGREEMENT = "chunk_matches_token_loop"
BEYOND = "too_sensitive_for_16_bits"
BYTES, DRAWS = 4096, 100
"""Of randomness for one rule, more than any takes; and how often further ones are drawn where hypothesis refuses them.
"""
QUIET: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example),
    "report_multiple_bugs": False,
    "print_blob": False,
}
TWENTIETHS = (0.45, *(n / 20 for n in range(20) if n != 9))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A `Chance` whose decisions hypothesis takes, and shrinks."""

    draw: Callable[[st.SearchStrategy[Any]], Any]

    def choice(self, seq: Sequence[Option], /) -> Option:
        """One of the options; the first is the simplest."""
        return self.draw(st.sampled_from(seq))

    def randint(self, a: int, b: int, /) -> int:
        """A whole number from a to b; a is the simplest. Drawn from 0: hypothesis before 6.170 reads no number from
        bytes that needs more bits than b - a has.
        """
        return a + self.draw(st.integers(0, b - a))

    def random(self) -> float:
        """A twentieth; 0.45 is the simplest."""
        return self.draw(st.sampled_from(TWENTIETHS))


@st.composite
def rules(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Rule:
    """Rules over the whole grammar."""
    return wider_rule(Drawn(draw), "random")


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule on which a backend fails, shrunk, and what it fails."""

    rule: Rule
    said: str

    def __str__(self) -> str:
        return f"{self.said}\n{self.rule}"


@dataclass(frozen=True, slots=True)
class Tried:
    """One number of a run: its rule's hash, whether that has no results in 16 bits, and the fault if there is one."""

    number: int
    hash: str
    beyond: bool
    fault: Fault | None


def agrees(rule: Rule, backend: Backend) -> tuple[Verdict, ...]:
    """Values and all gradients at two chunk sizes, T two chunks of the larger and three tokens: the torch form against
    the token loop in float64; where the backend is triton the generated kernels too, compiled in bfloat16 on a CUDA
    device (in float32 for a rule that has no results in 16 bits), interpreted in float32 elsewhere.
    """
    exact = run_conformance(rule, "torch", properties=[AGREEMENT])
    if backend != "triton":
        return exact
    if torch.cuda.is_available():
        kernels = partial(run_conformance, rule, backend, "cuda", properties=[AGREEMENT])
        short = _in_short_floats(rule, kernels(dtype=torch.bfloat16))
        wide = kernels(dtype=torch.float32) if any(verdict.name == BEYOND for verdict in short) else ()
        return (*exact, *short, *wide)
    shape, chunks = interpreted_sizes(rule)
    kernels = partial(run_conformance, rule, backend, "cpu", properties=[AGREEMENT])
    return (*exact, *kernels(dtype=torch.float32, shape=shape, chunk_sizes=chunks))


def _in_short_floats(rule: Rule, verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """The verdicts, or that a rule which fails has no results in 16 bits: no bound is widened as far as it would need
    (see `MOST_WIDENED`).
    """
    if all(verdict.passed for verdict in verdicts):
        return tuple(verdicts)
    setting = setting_of(rule, "triton", "cuda", torch.bfloat16)
    for difficulty in Difficulty:
        inputs = setting.inputs(difficulty=difficulty)
        expected = token_loop(rule, inputs)
        sensitivity = Sensitivity(rule, inputs, expected)
        for name in ("output", "state", *expected.gradients):
            limit = setting.bound(quantity_of(setting.form, name), hard=difficulty is Difficulty.HARD)
            factor = sensitivity.factor(name, setting, limit)
            if factor > MOST_WIDENED:
                return (Verdict(BEYOND, factor, float("inf"), f"times the table's bound: {name}"),)
    return tuple(verdicts)


def tried(number: int, check: Callable[[Rule], Sequence[Verdict]], *, shrink: bool = True) -> Tried:
    """Check the rule of this number, and shrink it where it fails, for five minutes at most.

    Errors: RuleError where hypothesis makes no rule of the number: one that was not checked counts as no result.
    """
    met: list[tuple[Rule, tuple[Verdict, ...]]] = []
    faults: list[Fault] = []

    @settings(database=InMemoryExampleDatabase(), phases=(Phase.reuse, Phase.shrink), **QUIET)
    @given(rules())
    def holds(rule: Rule) -> None:
        verdicts, said = _checked(rule, check)
        met.append((rule, verdicts))
        if said:
            faults.append(Fault(rule, said))
            raise AssertionError(said)

    chance = Random(number)
    try:
        for _ in range(DRAWS):
            cast(Any, holds).hypothesis.fuzz_one_input(chance.randbytes(BYTES))
            if met:
                break
    except AssertionError:
        with contextlib.suppress(AssertionError):
            if shrink:
                holds()
    if not met:
        raise RuleError(
            f"number {number} must be a rule; hypothesis {hypothesis.__version__} made none of {DRAWS} times {BYTES} "
            "random bytes. Install another version of it"
        )
    rule, verdicts = met[0]
    beyond = any(verdict.name == BEYOND for verdict in verdicts)
    return Tried(number, rule.hash, beyond, faults[-1] if faults else None)


def run(backend: Backend, numbers: Sequence[int], processes: int, *, shrink: bool = True) -> Iterator[Tried]:
    """Every number's rule, in several processes, in order."""
    one = partial(tried, check=partial(agrees, backend=backend), shrink=shrink)
    if processes == 1:
        yield from map(one, numbers)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(one, numbers)


def _checked(rule: Rule, check: Callable[[Rule], Sequence[Verdict]]) -> tuple[tuple[Verdict, ...], str]:
    """The verdicts and what failed, a line each; the error itself where the rule raised one."""
    try:
        verdicts = tuple(check(rule))
    except Exception as error:  # whatever a rule raises is what is looked for
        return (), f"{type(error).__name__}: {error}"
    return verdicts, "\n".join(str(verdict) for verdict in verdicts if not verdict.passed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print each fault as it is found and the counts at the end; 1 where there were faults."""
    parser = argparse.ArgumentParser("python -m archsearch.kernels.conformance.fuzz", description=__doc__)
    parser.add_argument("--backend", choices=("torch", "triton"), default="torch")
    parser.add_argument("--rules", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first; a run can be cut into pieces")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--shrink", action=argparse.BooleanOptionalAction, default=True, help="rules that fail")
    asked = parser.parse_args(arguments)
    if asked.backend == "triton" and not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    start = time.perf_counter()
    numbers = range(asked.seed, asked.seed + asked.rules)
    found: list[Tried] = []
    for each in run(asked.backend, numbers, asked.processes, shrink=asked.shrink):
        found.append(each)
        if each.fault:
            sys.stdout.write(f"rule {each.number}:\n{each.fault}\n")
            sys.stdout.flush()
    faults = sum(each.fault is not None for each in found)
    forms = len({each.hash for each in found})
    seconds = time.perf_counter() - start
    beyond = sum(each.beyond for each in found)
    apart = f" ({beyond} too sensitive for 16 bits, held to float32)" if beyond else ""
    sys.stdout.write(f"{len(found)} rules, {forms} forms: {faults} faults{apart}; {asked.backend}, {seconds:.0f} s\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
