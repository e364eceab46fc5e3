"""The ladder of one rule as lines for a terminal and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from archsearch.dsl import Rule
from archsearch.kernels.ladder import Line, Status, passed

STYLES = {Status.PASSED: "green", Status.FAILED: "bold red", Status.NOT_RUN: "yellow"}
TITLE = 36


@dataclass(frozen=True, slots=True)
class Checked:
    """What `check` found: every line of the ladder; `passed` unless one failed."""

    rule: Rule
    backend: str
    lines: tuple[Line, ...]

    @property
    def passed(self) -> bool:
        """Whether no row failed."""
        return passed(self.lines)

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        return summary(self.rule.name, self.lines)

    def as_json(self) -> dict[str, Any]:
        """Plain data; an error that is no number is null and its row has failed."""
        return {
            "name": self.rule.name,
            "hash": self.rule.hash,
            "backend": self.backend,
            "passed": self.passed,
            "rows": [row_json(line) for line in self.lines],
        }


def summary(name: str, lines: Sequence[Line]) -> str:
    """The verdict on what has that name, in one sentence."""
    counts = {status: sum(line.status is status for line in lines) for status in Status}
    rows = f"{counts[Status.PASSED]} passed, {counts[Status.FAILED]} failed, {counts[Status.NOT_RUN]} not run"
    return f"{name} {'passes' if passed(lines) else 'FAILS'}: {rows}"


def print_line(line: Line, page: Console) -> None:
    """One verdict: how it ended, what was promised, the measured number beside its bound, where it was measured."""
    text = Text(f"{line.status.value:<8}", STYLES[line.status])
    text.append(f"{line.row:>2}  {line.title:<{TITLE}}", "default")
    if line.error is not None and line.bound is not None:
        text.append(f" {line.error:8.1e} of {line.bound:<7.0e}", "bold" if line.status is Status.FAILED else "default")
        text.append(f" {line.seconds:5.1f} s  ", "dim")
    text.append(line.where, "dim")
    page.print(text, soft_wrap=True, highlight=False)
    for failure in line.failures:
        page.print(Text(f"         {failure}", "red"), soft_wrap=True, highlight=False)


def row_json(line: Line) -> dict[str, Any]:
    """A row as plain data; an error that is no number is null."""
    return {
        "row": line.row,
        "title": line.title,
        "status": line.status.value.lower(),
        "error": None if line.error is None or line.error != line.error else line.error,
        "bound": line.bound,
        "where": line.where,
        "failures": list(line.failures),
        "seconds": round(line.seconds, 3),
    }
