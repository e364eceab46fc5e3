"""The trials of a study that no other beats in everything."""

from typing import Any

from archsearch.report.tables import Cell, Column, Table
from archsearch.studies.evidence import Evidence, Row
from archsearch.studies.fronts import Direction
from archsearch.studies.wording import is_share, spoken


def pareto(evidence: Evidence) -> list[Row]:
    """The first front of the complete trials, by the first objective."""
    return [row for front, row in evidence.ranking if front == 1]


def pareto_records(evidence: Evidence) -> list[dict[str, Any]]:
    """The front as plain data."""
    return [
        {
            "trial": row.number,
            "name": row.name,
            "origin": row.origin,
            "rule_hash": row.rule_hash,
            "objectives": {name: row.values[name] for name in evidence.objectives},
        }
        for row in pareto(evidence)
    ]


def pareto_table(evidence: Evidence) -> Table:
    """The front as a table: trial, name, objectives."""
    columns = [Column("trial", "trial"), Column("name", "variant", wide=True)]
    for name, way in evidence.objectives.items():
        share, arrow = is_share(name), "↑" if way is Direction.MAXIMIZE else "↓"
        columns.append(Column(name, f"{spoken(name)} {arrow}", digits=1 if share else 3, percent=share))
    rows: list[dict[str, Cell]] = [
        {"trial": row.number, "name": row.name, **{name: row.values[name] for name in evidence.objectives}}
        for row in pareto(evidence)
    ]
    return Table("pareto", columns, rows, {})
