"""`archsearch rules`: the zoo as a table."""

import json as jsonlib
from importlib import import_module

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from archsearch.lowering import lower
from archsearch.lowering.display import one_line
from archsearch.mixers.zoo import rules

COLUMNS = ("name", "equation", "decay", "substeps", "source")


def list_rules(*, json: bool) -> None:
    """Print every rule: its state's update, the kind of its decay, how many writes a token, and where it comes from."""
    rows = [_row(name) for name in rules]
    if json:
        print(jsonlib.dumps(rows, indent=2))
        return
    table = Table(*COLUMNS, box=SIMPLE, padding=(0, 1, 1, 0))
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*(str(row[column]) for column in COLUMNS))
    console = Console()
    console.print(table)
    console.print("Next: archsearch show q_delta")


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
