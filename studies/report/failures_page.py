"""What failed in a study, whose fault it was and why; and that nothing did."""

from collections.abc import Sequence

from archsearch.report.page import Block, Section, Text
from archsearch.report.tables import Cell, Column, Table
from archsearch.studies.evidence.rows import Evidence
from archsearch.studies.files.outcomes import Outcome

BLAMED = {Outcome.BUG: "our code", Outcome.OVER_BUDGET: "the budget"}
"""Whose fault a failure is, where it is neither the rule's nor the machine's."""


def failures(evidence: Evidence) -> Section:
    """Every class of failure with one example, or that there was none; and what the machine lost and gave back."""
    quiet = (Outcome.COMPLETE, Outcome.STOPPED, Outcome.DUPLICATE)
    classes = [outcome for outcome in Outcome if outcome not in quiet and evidence.ended(outcome)]
    again = [row for row in evidence.rows if row.outcome in (Outcome.COMPLETE, Outcome.STOPPED) and row.attempt > 1]
    blocks: list[Block] = []
    if not classes:
        blocks.append(Text("No trial failed. To be stopped at a rung is no failure.", quiet=True))
    if again:
        words = "trial was" if len(again) == 1 else "trials were"
        blocks.append(
            Text(
                f"{len(again)} {words} lost by the machine, or interrupted, and begun again from the last checkpoint; "
                "this counts against no rule.",
                quiet=True,
            )
        )
    if classes:
        blocks.append(_failure_table(evidence, classes))
    return Section("What failed", blocks)


def _failure_table(evidence: Evidence, classes: Sequence[Outcome]) -> Table:
    columns = [
        Column("outcome", "class"),
        Column("trials", "trials"),
        Column("blamed", "blamed"),
        Column("example", "example", wide=True),
        Column("message", "what happened", wide=True),
        Column("log", "its log", wide=True),
    ]
    rows: list[dict[str, Cell]] = []
    for outcome in classes:
        ended = evidence.ended(outcome)
        first = ended[0]
        rows.append(
            {
                "outcome": outcome.value,
                "trials": len(ended),
                "blamed": BLAMED.get(outcome, "the rule" if outcome.blames_the_rule else "the machine"),
                "example": f"trial {first.number}: {first.name}",
                "message": first.message,
                "log": f"trials/{first.number:05d}/log-{first.attempt}.txt" if "place" in first.details else "",
            }
        )
    return Table("failures", columns, rows, {})
