"""`archsearch show SPACE`: its text, its holes, how large it is, and a few of its points."""

import json as jsonlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from archsearch.holes import Chosen, Integer, OneOf, domain
from archsearch.lowering.display import one_line
from archsearch.report.words import counted
from archsearch.spaces.counting import Census, Collapse, census
from archsearch.spaces.resolution import at_random
from archsearch.spaces.space import Point, Space

WIDTH = 110
"""Columns where the output is no terminal."""

COLLAPSES = 3
"""Examples that a terminal shows."""


def show_space(space: Space, name: str, *, json: bool, points: int = 0, seed: int = 0) -> None:
    """Print a space, how large it is, and `points` of its points, drawn at random."""
    found = census(space)
    source = random.Random(seed)
    drawn = [space.resolve(at_random(source)) for _ in range(points)]
    if json:
        print(jsonlib.dumps(_record(space, name, found, drawn), indent=2, ensure_ascii=False))
        return
    terminal = Console(highlight=False)
    page = terminal if terminal.is_terminal else Console(width=WIDTH, highlight=False)
    page.print(Text(name, "bold"))
    page.print(Syntax(str(space), "python", background_color="default", word_wrap=True))
    page.print(_holes(space))
    for line in count_lines(found):
        page.print(line, soft_wrap=True)
    for point in drawn:
        page.print(Text(f"\n{choice_text(point.choices)}", "bold"))
        page.print(f"  {one_line(point.rule)}")
    page.print(Text("\nNext: archsearch study check CONFIG, with space: " + name, "dim"))


def count_lines(found: Census) -> Iterator[str]:
    """How large a space is, in words."""
    more = "" if found.whole else f"more than {counted(found.rules, 'rule')}; of the first {found.rules:,}: "
    yield f"{more}{counted(found.structures, 'structure')}; {_ranges(found)}"
    told = "" if found.distinct_sources == found.distinct_rules else "; the layer's sources tell apart "
    tail = f"{told}{found.distinct_sources:,}" if told else ""
    yield f"{counted(found.rules, 'way')} to fill the rule: {counted(found.distinct_rules, 'distinct rule')}{tail}"
    for collapse in found.collapses[:COLLAPSES]:
        yield f"  {collapse_words(collapse)}"
    if len(found.collapses) > COLLAPSES:
        yield f"  and {len(found.collapses) - COLLAPSES} more such rules"
    for choices, reason in found.broken:
        yield f"  no rule: {choice_text(choices)}: {reason}"


def collapse_words(collapse: Collapse) -> str:
    """Which two fillings are one rule, and what that means."""
    meaning = "a choice without a meaning" if collapse.same_sources else "told apart by the layer alone"
    first, second = choice_text(collapse.first), choice_text(collapse.second)
    return f"one rule twice: {first} | {second} ({meaning})"


def choice_text(choices: Mapping[str, Chosen]) -> str:
    """Choices by the last parts of their paths: `decay=scalar erase=none lam=0.5`."""
    parts = [f"{path.rpartition('/')[2]}={_shown(chosen)}" for path, chosen in choices.items()]
    return " ".join(parts) or "no holes"


def _shown(chosen: Chosen) -> str:
    return f"{chosen:.3g}" if isinstance(chosen, float) else str(chosen)


def _ranges(counted: Census) -> str:
    if not counted.ranges:
        return "no ranges"
    return f"{counted.ranges} of {counted.holes} holes are ranges of numbers, filled anew in every point"


def _holes(space: Space) -> Table:
    table = Table("hole", "takes", box=SIMPLE, pad_edge=False)
    for path, hole in space.holes.items():
        table.add_row(Text(path), Text(domain(hole)))
    return table


def _record(space: Space, name: str, counted: Census, drawn: list[Point]) -> dict[str, Any]:
    return {
        "name": name,
        "hash": space.hash,
        "space": str(space),
        "holes": {path: _takes(hole) for path, hole in space.holes.items()},
        "structures": counted.structures,
        "ranges": counted.ranges,
        "rules": counted.rules,
        "distinct_rules": counted.distinct_rules,
        "distinct_sources": counted.distinct_sources,
        "whole": counted.whole,
        "collapses": [
            {"first": dict(c.first), "second": dict(c.second), "same_sources": c.same_sources}
            for c in counted.collapses
        ],
        "broken": [{"choices": dict(choices), "reason": reason} for choices, reason in counted.broken],
        "points": [
            {"choices": dict(point.choices), "rule": str(point.rule), "rule_hash": point.rule.hash} for point in drawn
        ],
    }


def _takes(hole: Any) -> dict[str, Any]:
    if isinstance(hole, OneOf):
        return {"one_of": list(hole.labels)}
    if isinstance(hole, Integer):
        return {"integer": [hole.low, hole.high, hole.step]}
    return {"log_uniform" if hole.log else "uniform": [hole.low, hole.high]}
