"""A rule is trained only if it keeps its promises: the rows of the validity ladder that need no training and no clock.

The ladder is `archsearch.kernels.ladder`'s, with the layer's row from `archsearch.mixers.ladder`; its rows on falling
loss and cost are left to `archsearch check`: the trial itself shows them. STUDY/checks.jsonl keeps what was found, a
line a rule.
"""

import functools
import time
from pathlib import Path

import torch

from archsearch.dsl import Rule
from archsearch.kernels.ladder import Line, Status, climb
from archsearch.mixers.ladder import checks
from archsearch.studies.files import records
from archsearch.studies.files.outcomes import Unbuildable
from archsearch.studies.training.config import read_rule

LAYER_ROWS = (7,)
"""Of the rows that need a layer, those that do not measure time."""


@functools.lru_cache(maxsize=256)
def require_valid(text: str, file: Path) -> None:
    """Check the rule of that text, which `file` does not know as sound yet, once in a process. Unbuildable, with the
    first row that failed.
    """
    rule = read_rule(text)
    key = {"rule_hash": rule.hash, "torch": str(torch.__version__)}
    if any(
        line.get("passed") and all(line.get(name) == key[name] for name in key) for line in records.read_lines(file)
    ):
        return
    began = time.perf_counter()
    failures = why_unsound(rule)
    seconds = round(time.perf_counter() - began, 2)
    records.append_json(file, {**key, "passed": not failures, "failures": list(failures), "seconds": seconds})
    if failures:
        raise Unbuildable(f"the rule does not pass its checks: {failures[0]}; archsearch check shows every row")


@functools.lru_cache(maxsize=256)
def why_unsound(rule: Rule) -> tuple[str, ...]:
    """The rows that a rule fails, in words; on the CPU, in the form of its kernels that needs no device."""
    others = [check for check in checks(rule, "torch") if check.number in LAYER_ROWS]
    return tuple(_words(line) for line in climb(rule, "torch", others) if line.status is Status.FAILED)


def _words(line: Line) -> str:
    return f"row {line.row}, {line.title}: {' '.join(line.failures[0].split())}" if line.failures else line.title
