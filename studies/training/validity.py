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
from archsearch.mixers.layer.fed import as_fed
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.layer.planning import layer_of
from archsearch.studies.files import records
from archsearch.studies.files.outcomes import Unbuildable
from archsearch.studies.training.config import read_rule

LAYER_ROWS = (7, 8)
"""Of the rows that need a layer, those that do not measure time; row 8 does where its layer ties addresses."""


def require_valid(text: str, layer: Layer | None, file: Path) -> None:
    """Check the rule of that text in a layer, which `file` does not know as sound yet, once in a process. Unbuildable,
    with the first row that failed.
    """
    rule = read_rule(text)
    _require(rule, as_fed(rule, layer_of(rule, layer)), file)


@functools.lru_cache(maxsize=256)
def _require(rule: Rule, fed: Rule, file: Path) -> None:
    key = {"rule_hash": rule.hash, "torch": str(torch.__version__), "fed": None if fed is rule else fed.hash}
    if any(
        line.get("passed") and all(line.get(name) == key[name] for name in key) for line in records.read_lines(file)
    ):
        return
    began = time.perf_counter()
    failures = _failures(rule, fed)
    seconds = round(time.perf_counter() - began, 2)
    records.append_json(file, {**key, "passed": not failures, "failures": list(failures), "seconds": seconds})
    if failures:
        raise Unbuildable(f"the rule does not pass its checks: {failures[0]}; archsearch check shows every row")


def why_unsound(rule: Rule, layer: Layer | None = None) -> tuple[str, ...]:
    """The rows that a rule fails in a layer, in words; on the CPU, in the form of its kernels that needs no device.

    layer: None is the paper's layer for a rule of the zoo, else `Layer()`.
    """
    return _failures(rule, as_fed(rule, layer_of(rule, layer)))


@functools.lru_cache(maxsize=256)
def _failures(rule: Rule, fed: Rule) -> tuple[str, ...]:
    others = [check for check in checks(rule, "torch", fed) if check.number in LAYER_ROWS]
    return tuple(_words(line) for line in climb(rule, "torch", others) if line.status is Status.FAILED)


def _words(line: Line) -> str:
    return f"row {line.row}, {line.title}: {' '.join(line.failures[0].split())}" if line.failures else line.title
