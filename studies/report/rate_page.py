"""Learning rates on fresh seeds: entrants that are one structure at several rates, as curves with intervals."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from archsearch.report.page import Block, Figure, Section, Text
from archsearch.report.plots import Line, Mark, plot, tone
from archsearch.report.scales import Axis
from archsearch.report.tables import Cell, Column, Table
from archsearch.studies.design.entrants import SEED
from archsearch.studies.design.rates import RATE, without_rate
from archsearch.studies.evidence.conclusions import Conclusions, Standing
from archsearch.studies.evidence.naming import choice_words
from archsearch.studies.evidence.rows import Evidence
from archsearch.studies.evidence.wording import is_share, spoken, within
from archsearch.studies.tasks.direction import Direction


@dataclass(frozen=True, slots=True)
class Swept:
    """A structure and its entrants by rising learning rate."""

    name: str
    standings: Sequence[tuple[float, Standing]]

    def best(self, objective: str, way: Direction) -> tuple[float, str]:
        """(best rate, which end of the rates tried it is: `lowest`, `highest` or nothing)."""
        means = [(rate, s.means[objective].mean) for rate, s in self.standings if objective in s.means]
        better = min if way is Direction.MINIMIZE else max
        rate, _ = better(means, key=lambda pair: pair[1])
        ends = {self.standings[0][0]: "lowest", self.standings[-1][0]: "highest"}
        return rate, ends.get(rate, "")


def swept(concluded: Conclusions, known: Mapping[str, str]) -> list[Swept]:
    """The structures that entered at two rates at least. known: names of rules by hash."""
    groups: dict[str, list[tuple[float, Standing]]] = {}
    names: dict[str, str] = {}
    for standing in concluded.standings.values():
        row = next((r for r in standing.complete if r.learning_rate is not None and RATE in r.choices), None)
        if row is None or row.learning_rate is None:
            continue
        choices = {path: value for path, value in without_rate(row.choices).items() if path != SEED}
        key = json.dumps(choices, sort_keys=True)
        names[key] = known.get(row.rule_hash) or choice_words(choices)
        groups.setdefault(key, []).append((row.learning_rate, standing))
    return [Swept(names[key], sorted(group, key=lambda pair: pair[0])) for key, group in groups.items() if group[1:]]


def swept_section(evidence: Evidence, concluded: Conclusions, known: Mapping[str, str]) -> list[Section]:
    """A figure for each objective, with a warning for each best rate at an end, and one table."""
    found = swept(concluded, known)
    if not found:
        return []
    blocks: list[Block] = []
    for objective, way in evidence.objectives.items():
        edges = [(each.name, *each.best(objective, way)) for each in found]
        said = "; ".join(f"{name}: {rate:.3g}, the {end}" for name, rate, end in edges if end)
        if said:
            blocks.append(
                Text(f"{spoken(objective).capitalize()} is best at an end of the rates: {said}.", warning=True)
            )
        blocks.append(_figure(found, objective))
    return [Section("Learning rates", [*blocks, _table(found, evidence.objectives)])]


def _figure(found: Sequence[Swept], objective: str) -> Figure:
    lines: list[Line] = []
    marks: list[Mark] = []
    for i, each in enumerate(found):
        means = [(rate, s.means[objective]) for rate, s in each.standings if objective in s.means]
        lines.append(Line([(rate, mean.mean) for rate, mean in means], tone(i), each.name))
        for rate, mean in means:
            bounds = within(objective, mean.low), within(objective, mean.high)
            ends = bounds if math.isfinite(mean.low) else None
            hint = f"{each.name} at {rate:.3g}: {mean.mean:.4g}, {mean.n} seeds"
            marks.append(Mark(rate, mean.mean, tone(i), hint=hint, up=ends))
    drawing = plot(
        Axis("learning rate", log=True),
        Axis(spoken(objective), percent=is_share(objective)),
        lines=lines,
        marks=marks,
        summary=f"{objective} of each structure by learning rate, over fresh seeds",
    )
    caption = f"{spoken(objective).capitalize()} by learning rate: means over fresh seeds with 95 % intervals."
    return Figure(drawing, caption)


def _table(found: Sequence[Swept], objectives: Mapping[str, Direction]) -> Table:
    columns = [Column("name", "structure", wide=True), Column("rate", "rate", unit="peak"), Column("seeds", "seeds")]
    for objective in objectives:
        share = is_share(objective)
        digits = 2 if share else 4
        columns.append(Column(objective, spoken(objective), digits=digits, percent=share))
        columns.append(Column(f"{objective}_half", "±", digits=digits, percent=share))
    columns.append(Column("failed", "seeds without a value"))
    rows = [_row(each.name, rate, standing, objectives) for each in found for rate, standing in each.standings]
    return Table("learning_rates", columns, rows, {})


def _row(name: str, rate: float, standing: Standing, objectives: Mapping[str, Direction]) -> dict[str, Cell]:
    row: dict[str, Cell] = {"name": name, "rate": rate, "seeds": len(standing.complete)}
    for objective in objectives:
        mean = standing.means.get(objective)
        if mean is not None:
            row[objective] = mean.mean
            row[f"{objective}_half"] = mean.high - mean.mean if math.isfinite(mean.high) else None
    return {**row, "failed": sum(r.outcome is not None for r in standing.rows) - len(standing.complete)}
