"""Speed against quality: only speeds that were measured with the device to themselves say anything of a rule."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from archsearch.report.page import Block, Figure, Section, Text
from archsearch.report.plots import Line, Mark, plot
from archsearch.report.scales import Axis
from archsearch.report.tables import Cell, Column, Table
from archsearch.studies.evidence.conclusions import Conclusions
from archsearch.studies.evidence.rows import Evidence, Row
from archsearch.studies.evidence.wording import is_share, shown, spoken
from archsearch.studies.search.fronts import front, losses
from archsearch.studies.tasks.direction import Direction
from archsearch.studies.training.language import COUNTS
from archsearch.studies.training.timing import STEP_TIME

RATE = "tokens_per_second"
WAYS = {STEP_TIME: Direction.MINIMIZE, RATE: Direction.MAXIMIZE}
"""The two measures of speed, and which way each is better."""

SHARED = (
    "Trials of this study shared their devices, so that their rates say nothing of a rule's speed. With "
    "objectives: {step_milliseconds: minimize} every structure is timed once with the device to itself."
)


@dataclass(frozen=True, slots=True)
class Timed:
    """A variant with its speed and the qualities of the study, over its seeds. label: a short name for drawings.
    on_front: no other is both faster and better in every quality.
    """

    name: str
    label: str
    is_baseline: bool
    speed: float
    qualities: Mapping[str, float]
    on_front: bool


def qualities(evidence: Evidence) -> dict[str, Direction]:
    """The objectives that training decides."""
    return {name: way for name, way in evidence.objectives.items() if name not in (*COUNTS, STEP_TIME)}


def timed(evidence: Evidence, concluded: Conclusions | None = None) -> tuple[str, list[Timed]]:
    """The measure, and every compared variant that has it, fastest first; none where trials shared their devices.

    The step time where it was measured, else the rates of trials that each had a device.
    """
    groups = _groups(evidence, concluded)
    for measure in (STEP_TIME, RATE) if _had_devices(evidence) else (STEP_TIME,):
        found = {name: _mean([_measured(row, measure) for row in rows]) for name, rows in groups.items()}
        known = {name: speed for name, speed in found.items() if speed is not None}
        if len(known) > 1:
            return measure, _timed(evidence, groups, known, measure)
    return STEP_TIME, []


def _groups(evidence: Evidence, concluded: Conclusions | None) -> dict[str, list[Row]]:
    """Trials with their whole budget, by variant."""
    if concluded is not None:
        return {name: s.complete for name, s in concluded.standings.items() if s.complete}
    return {row.name if row.is_baseline else f"{row.name} (trial {row.number})": [row] for row in evidence.judged}


def _timed(
    evidence: Evidence, groups: Mapping[str, Sequence[Row]], speeds: Mapping[str, float], measure: str
) -> list[Timed]:
    asked = qualities(evidence)
    ways = {measure: WAYS[measure], **asked}
    values: dict[str, dict[str, float]] = {}
    for name, speed in speeds.items():
        means = {quality: statistics.fmean(row.values[quality] for row in groups[name]) for quality in asked}
        values[name] = {measure: speed, **means}
    best = front([losses(each, ways) for each in values.values()])
    found = [
        Timed(
            name,
            name if evidence.entrants else f"trial {groups[name][0].number}",
            evidence.is_of_baseline(groups[name][0]),
            each[measure],
            {q: value for q, value in each.items() if q != measure},
            place in best,
        )
        for place, (name, each) in enumerate(values.items())
    ]
    return sorted(found, key=lambda each: losses({measure: each.speed}, {measure: WAYS[measure]}))


def _measured(row: Row, measure: str) -> float | None:
    value = row.values.get(measure, row.details.get(measure))
    return None if value is None else float(value)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _had_devices(evidence: Evidence) -> bool:
    """Whether a trial had a device to itself: a whole GPU, or the CPU with no other trial beside it."""
    resources: Mapping[str, object] = evidence.plan.get("config", {}).get("resources", {})
    gpus = resources.get("gpus")
    if gpus is None and any(row.details.get("gpu") for row in evidence.rows):
        return True
    return float(str(gpus or 0)) >= 1 or resources.get("concurrent") == 1


def speed_section(evidence: Evidence, concluded: Conclusions | None = None) -> list[Section]:
    """A figure for each quality and one table; where speeds were not measured, how to have them."""
    measure, found = timed(evidence, concluded)
    if not found:
        return [] if _had_devices(evidence) else [Section("Speed and quality", [Text(SHARED, quiet=True)])]
    ways = qualities(evidence)
    blocks: list[Block] = [_figure(found, measure, name, way) for name, way in ways.items()]
    return [Section("Speed and quality", [*blocks, _table(found, measure, ways)])]


def _figure(found: Sequence[Timed], measure: str, quality: str, way: Direction) -> Figure:
    both = {measure: WAYS[measure], quality: way}
    best = set(front([losses({measure: t.speed, quality: t.qualities[quality]}, both) for t in found]))
    marks = [_mark(each, measure, quality, on_front=i in best) for i, each in enumerate(found)]
    stairs = sorted((found[i].speed, found[i].qualities[quality]) for i in best)
    lines = [Line(stairs, "muted", hint="the front", dashed=True)] if len(stairs) > 1 else []
    drawing = plot(
        Axis(spoken(measure)),
        Axis(spoken(quality), percent=is_share(quality)),
        lines=lines,
        marks=marks,
        summary=f"{quality} against {measure} of every variant",
    )
    faster = "left" if WAYS[measure] is Direction.MINIMIZE else "right"
    better = "up" if way is Direction.MAXIMIZE else "down"
    caption = (
        f"{spoken(quality).capitalize()} against {spoken(measure)}; better is {better} and to the {faster}. Filled: on "
        "the front of these two. Each was timed with its device to itself."
    )
    return Figure(drawing, caption)


def _mark(each: Timed, measure: str, quality: str, *, on_front: bool) -> Mark:
    value = each.qualities[quality]
    tone = "tone0" if each.is_baseline else "winner" if on_front else "muted"
    hint = f"{each.name}: {each.speed:,.4g} {spoken(measure)}, {spoken(quality)} {shown(quality, value)}"
    label = each.name if each.is_baseline else each.label if on_front else ""
    return Mark(each.speed, value, tone, label, hint, hollow=not on_front)


def _table(found: Sequence[Timed], measure: str, ways: Mapping[str, Direction]) -> Table:
    digits = 2 if measure == STEP_TIME else 0
    columns = [Column("name", "variant", wide=True), Column(measure, spoken(measure), digits=digits)]
    columns += [Column(name, spoken(name), digits=1 if is_share(name) else 3, percent=is_share(name)) for name in ways]
    columns.append(Column("front", "on the front of all"))
    rows: list[dict[str, Cell]] = [
        {"name": t.name, measure: t.speed, **t.qualities, "front": "yes" if t.on_front else "no"} for t in found
    ]
    return Table("speed", columns, rows, {i: "baseline" for i, each in enumerate(found) if each.is_baseline})
