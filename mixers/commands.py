"""`archsearch rules`: the zoo as a table."""

import json as jsonlib
from collections.abc import Mapping, Sequence
from importlib import import_module

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from archsearch.lowering import lower
from archsearch.lowering.display import one_line
from archsearch.mixers.zoo import rules
from archsearch.report.words import counted

COLUMNS = ("name", "equation", "decay", "substeps", "source")

WIDE = 110
"""Columns of a terminal in which the columns of the table stand side by side."""


def list_rules(*, json: bool) -> None:
    """Print every rule: its state's update, the kind of its decay, how many writes a token, and where it comes from."""
    rows = [_row(name) for name in rules]
    if json:
        print(jsonlib.dumps(rows, indent=2))
        return
    console = Console()
    console.print(_table(rows) if console.width >= WIDE else _narrow_table(rows))
    console.print("Next: archsearch show q_delta")


def _table(rows: Sequence[Mapping[str, str | int]]) -> Table:
    table = Table(*COLUMNS, box=SIMPLE, padding=(0, 1, 1, 0))
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*(str(row[column]) for column in COLUMNS))
    return table


def _narrow_table(rows: Sequence[Mapping[str, str | int]]) -> Table:
    """The name, and beside it the equation above everything else."""
    table = Table("name", "equation; decay, substeps, source", box=SIMPLE, padding=(0, 1, 1, 0))
    table.columns[0].no_wrap = True
    for row in rows:
        decay = "no" if row["decay"] == "none" else row["decay"]
        facts = f"{decay} decay, {counted(int(row['substeps']), 'substep')}, {row['source']}"
        table.add_row(str(row["name"]), Text.assemble(str(row["equation"]), "\n", (facts, "dim")))
    return table


def _row(name: str) -> dict[str, str | int]:
    form = lower(rules[name])
    return {
        "name": name,
        "equation": one_line(rules[name]),
        "decay": form.decay_kind,
        "substeps": len(form.rows),
        "source": _source(name),
    }


def _source(name: str) -> str:
    """What the first sentence of the rule's module says in its last parentheses: paper and equation."""
    text = import_module(f"archsearch.mixers.{name}").__doc__ or ""
    sentence = " ".join(text.strip().partition("\n\n")[0].split())
    return sentence.rpartition(" (")[2].rstrip(".").removesuffix(")")
