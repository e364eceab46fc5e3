"""`archsearch study check`: a study before it runs, as text or JSON."""

import json as jsonlib
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from archsearch.report.words import counted
from archsearch.spaces.commands import count_lines
from archsearch.studies.engine.checking import CheckedPoint, StudyCheck
from archsearch.studies.files.origins import BASELINE

ROWS = 40
"""Rows that a terminal shows."""

NARROWEST = 30
"""Columns of the points' names."""


def print_check(found: StudyCheck, source: str, page: Console, *, json: bool) -> None:
    """Print what was found; JSON holds every point."""
    if json:
        print(jsonlib.dumps(_record(found), indent=1))
        return
    for line in _head(found):
        page.print(line)
    page.print(_table(found), soft_wrap=False)
    if len(found.points) > ROWS:
        page.print(f"{len(found.points) - ROWS} more in --json", style="dim")
    for point in found.points:
        for line in point.missed:
            page.print(Text(f"over budget: {point.name}: {line}; it would not be trained", "yellow"))
    for point in found.bad:
        page.print(Text(f"bad point: {point.name}: {point.error}", "red"))
    if found.over and not found.bad:
        page.print(Text("no point meets the budget: change it, or the sizes that the space writes", "red"))
    page.print(f"Next: archsearch study {'check' if found.bad or found.over else 'run'} {quote(source)}")


def _head(found: StudyCheck) -> Iterator[str]:
    yield from count_lines(found.census)
    asked = ", ".join(f"{name} {number:,.0f}" for name, number in found.targets.numbers.items())
    if asked:
        yield f"sizes solved for {asked}, within {found.targets.tolerance:.1%}"
    baselines = len(found.plan.baselines)
    named = counted(baselines, "baseline") if found.plan.origin == BASELINE else f"{baselines} trials of entrants"
    which = "all structures" if found.whole else f"{counted(len(found.points) - baselines, 'point')} drawn at random"
    built = [point.variant_hash for point in found.points if point.variant_hash]
    variants = counted(len(set(built)), "distinct variant")
    yield f"checked: {named} and {which}: {variants}; {len(found.bad)} cannot be built"
    most = found.tokens * (found.trials + baselines) * found.rates
    rates = f", each at {found.rates} learning rates" if found.rates > 1 else ""
    trials = counted(found.trials, "trial")
    yield f"a trial: {counted(found.tokens, 'token')}; {trials} and {named}{rates}: at most {most:,}"
    if found.spent_after is not None:
        most_trials = counted(found.spent_after, "trial")
        yield f"the space is spent after {most_trials} beside the baselines; ask for no more than that"
    seconds = [point.seconds for point in found.points if point.seconds is not None]
    if seconds:
        yield f"measured before: about {sum(seconds) / len(seconds):,.0f} s a trial, one at a time"


def _table(found: StudyCheck) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("point", overflow="fold", min_width=NARROWEST)
    for title in ("width", "MLP", "K x V", "parameters", "FLOPs/token", "state bytes"):
        table.add_column(title, justify="right", no_wrap=True)
    is_timed = any(point.seconds is not None for point in found.points)
    if is_timed:
        table.add_column("seconds", justify="right", no_wrap=True)
    for point in found.points[:ROWS]:
        style = "red" if point.error else "yellow" if point.missed else ""
        seconds = "" if point.seconds is None else f"{point.seconds:,.0f}"
        table.add_row(Text(point.name), *_cells(point), *([seconds] if is_timed else []), style=style)
    return table


def _cells(point: CheckedPoint) -> list[str]:
    if point.sizes is None or point.costs is None:
        return ["cannot be built", *[""] * 5]
    sizes, costs = point.sizes, point.costs
    return [
        f"{sizes['width']:.0f}",
        f"{sizes['mlp_ratio']:.2f}",
        f"{sizes['key']:.0f} x {sizes['value']:.0f}",
        _number(costs["parameters"]),
        _number(costs["flops_per_token"]),
        _number(costs["state_bytes"]),
    ]


def _number(value: float) -> str:
    """All digits of what fits beside the names."""
    return f"{value:,.0f}" if value < 1e10 else f"{value:.3e}"


def _record(found: StudyCheck) -> Mapping[str, Any]:
    return {
        "structures": found.census.structures,
        "rules": found.census.rules,
        "distinct_rules": found.census.distinct_rules,
        "whole": found.whole,
        "tokens": found.tokens,
        "trials": found.trials,
        "baselines": list(found.plan.baselines),
        "targets": dict(found.targets.numbers),
        "tolerance": found.targets.tolerance,
        "cannot_be_built": len(found.bad),
        "spent_after": found.spent_after,
        "points": [
            {
                "name": point.name,
                "choices": dict(point.choices),
                "rule_hash": point.rule_hash,
                "variant_hash": point.variant_hash,
                "sizes": point.sizes,
                "costs": point.costs,
                "seconds": point.seconds,
                "missed": list(point.missed),
                "error": point.error,
            }
            for point in found.points
        ],
    }
