"""The commands that read a study's files as plain functions, and what they print: how far it is, who leads, who won."""

import dataclasses
import json as jsonlib
import sys
from collections.abc import Collection
from pathlib import Path
from shlex import quote

from rich import box
from rich.console import Console
from rich.table import Table as Printed

from archsearch.dsl import parse_rule
from archsearch.lowering.display import equation
from archsearch.report.tables import Column, Table
from archsearch.report.tables import shown as cell_text
from archsearch.report.words import counted
from archsearch.studies.evidence.conclusions import Conclusions, conclude
from archsearch.studies.evidence.pareto import places
from archsearch.studies.evidence.rows import Evidence, read_evidence
from archsearch.studies.evidence.status import Status, read_status
from archsearch.studies.evidence.winner import Finals, finals_of
from archsearch.studies.evidence.wording import shown, spoken
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.report.caveats import NO_AA, aa_beside, warnings
from archsearch.studies.report.live import follow, status_view
from archsearch.studies.report.matched_page import unequal
from archsearch.studies.report.study_page import keep_report, ranking_table, write_report
from archsearch.studies.report.verdict_page import pareto_table, summary, verdict_table

WIDTH = 120
"""Columns where the output is no terminal."""

BRIEF = ("rank", "trial", "name", "front", "outcome", "learning_rate", "reason")
"""Columns of the ranking that a terminal shows, beside the objectives."""

VERDICT_BRIEF = ("entrant", "verdict", "mean", "difference", "low", "high", "p", "seeds", "reason")
"""Columns of a table of verdicts that a terminal shows."""

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH)


def status(directory: str, *, json: bool, once: bool = True) -> None:
    """Print how far the study has come; without `once`, on a terminal, follow it while its driver runs."""
    home = StudyDirectory(Path(directory))
    found = read_status(home)
    if json:
        print(jsonlib.dumps(found.record(), indent=1))
        return
    if not once and console.is_terminal:
        found = follow(console, home)
    _print_status(found)


def pareto(directory: str, *, json: bool) -> None:
    """Print the trials that no other beats in everything."""
    evidence = read_evidence(StudyDirectory(Path(directory)))
    front = [place for place in places(evidence, conclude(evidence)) if place.on_front]
    table = pareto_table(front, evidence.objectives)
    table = dataclasses.replace(table, columns=[Column("trial", "trial"), *table.columns])
    if json:
        print(table.json(), end="")
        return
    known = [column.key for column in table.columns if any(row.get(column.key) is not None for row in table.rows)]
    shown_keys = [key for key in known if key not in ("front", "beaten_by")]
    _print_table(table, shown_keys)
    if not front:
        console.print("No trial has reached its full budget yet.")
    console.print(f"Next: archsearch study report {quote(directory)}")


def best(directory: str, *, json: bool) -> None:
    """Print the ranking and the best rule; of finals the verdicts."""
    evidence = read_evidence(StudyDirectory(Path(directory)))
    concluded = conclude(evidence)
    if json:
        print(ranking_table(evidence).json() if concluded is None else _verdicts_json(concluded, evidence), end="")
        return
    if concluded is not None:
        print_conclusions(concluded, evidence, Path(directory))
        console.print(
            f"Next: archsearch study report {quote(directory)}, or archsearch export {quote(directory)} winner"
        )
        return
    print_ranking(evidence)
    finals = finals_of(StudyDirectory(Path(directory)))
    if finals is not None:
        console.print(finals.words)
        console.print(f"Next: archsearch study {next_of(finals, directory)}")
        return
    console.print(f"Next: archsearch study report {quote(directory)}")


def report(directory: str, keep: str | None = None) -> None:
    """Write the report and print its path. keep: where its page and tables are written too, to outlive the study."""
    study = StudyDirectory(Path(directory))
    console.print(f"Report: {write_report(study)}")
    if keep is not None:
        files = keep_report(study, Path(keep))
        console.print(f"Kept: {counted(len(files), 'file')} in {keep}")


def print_ranking(evidence: Evidence) -> None:
    """The ranking, and the winner's equation."""
    _print_table(ranking_table(evidence), (*BRIEF, *evidence.objectives))
    console.print("Scores of one seed: they screen, they do not conclude.", style="dim")
    for line in warnings(evidence):
        console.print(line, style="yellow")
    winner = evidence.winner
    if winner is None:
        console.print("No trial has reached its full budget yet.")
        return
    values = ", ".join(f"{spoken(name)} {shown(name, winner.values[name])}" for name in evidence.objectives)
    console.print(f"\nWinner: trial {winner.number}, {winner.name} ({values})")
    for line in equation(parse_rule(winner.rule)).splitlines():
        console.print(f"    {line}")
    console.print()


def print_conclusions(concluded: Conclusions, evidence: Evidence, directory: Path) -> None:
    """Every entrant against the baseline, a table for each objective; then what the verdicts rest on."""
    for objective in evidence.objectives:
        console.print(f"\n{spoken(objective)} against {concluded.against}, paired by seed")
        _print_table(verdict_table(evidence, concluded, objective), VERDICT_BRIEF)
        console.print(summary(concluded, objective))
    console.print()
    for line in [*warnings(evidence, concluded), unequal(evidence, concluded)]:
        if line:
            console.print(line, style="yellow")
    console.print((aa_beside(directory) or [NO_AA])[0], style="dim")


def next_of(finals: Finals, search: str) -> str:
    """The command that goes on with finals, or shows their verdicts."""
    return f"finals {quote(search)}" if finals.ended < finals.wanted else f"best {quote(str(finals.directory.path))}"


def _verdicts_json(concluded: Conclusions, evidence: Evidence) -> str:
    """The rows of every table of verdicts, by objective."""
    tables = {name: verdict_table(evidence, concluded, name) for name in evidence.objectives}
    return jsonlib.dumps({name: jsonlib.loads(table.json()) for name, table in tables.items()}, indent=1) + "\n"


def _print_table(table: Table, keys: Collection[str]) -> None:
    printed = Printed(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = [column for column in table.columns if column.key in keys]
    for column in columns:
        numeric = any(isinstance(row.get(column.key), int | float) for row in table.rows)
        printed.add_column(f"{column.title} {column.unit}".strip(), justify="right" if numeric else "left")
    styles = {"winner": "bold", "reference": "dim", "ended": "dim"}
    for index, row in enumerate(table.rows):
        cells = ["" if row.get(c.key) is None else cell_text(row.get(c.key), c) for c in columns]
        printed.add_row(*cells, style=styles.get(table.marks.get(index, ""), ""))
    console.print(printed, soft_wrap=False)


def _print_status(found: Status) -> None:
    console.print(status_view(found))
    finished = found.ended >= found.wanted
    console.print(f"Next: archsearch study {'best' if finished or found.driver else 'resume'} {quote(found.directory)}")
