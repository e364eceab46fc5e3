"""The drawings of a study: objectives against each other, curves while training, the course of the search."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from archsearch.report.page import Block, Figure, Section
from archsearch.report.plots import COLOURS, Line, Mark, plot, tone
from archsearch.report.scales import Axis
from archsearch.report.words import counted
from archsearch.studies.evidence.findings import Arm, arms
from archsearch.studies.evidence.rows import Evidence, Row
from archsearch.studies.evidence.wording import is_share, shown, spoken
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.search.samplers import SamplerKind
from archsearch.studies.tasks.direction import Direction


@dataclass(frozen=True, slots=True)
class _Palette:
    """What trials look like. tones: a colour for each: the winner's, one for each baseline at its best rate, grey."""

    tones: Mapping[int, str]
    winner: int | None
    named: bool

    def label(self, row: Row) -> str:
        """The name of a trial where it stands out."""
        if row.number == self.winner:
            return f"winner: {row.name}" if row.is_baseline else f"winner (trial {row.number})"
        return row.name if self.named and row.is_baseline and self.tones[row.number] != "muted" else ""


def _palette(evidence: Evidence) -> _Palette:
    tones = {row.number: "muted" for row in evidence.rows}
    if evidence.entrants:
        return _Palette(tones, None, named=False)
    judged = {row.name: row.number for row in evidence.judged if row.is_baseline}
    baselines = {row.name: judged.get(row.name, row.number) for row in reversed(evidence.rows) if row.is_baseline}
    tones |= {number: tone(i) for i, number in enumerate(sorted(baselines.values()))}
    winner = evidence.winner
    return _Palette(
        tones if winner is None else {**tones, winner.number: "winner"}, winner and winner.number, named=True
    )


def _axis(name: str, *, log: bool = False) -> Axis:
    return Axis(spoken(name), log=log, percent=is_share(name))


def trade_off(evidence: Evidence) -> list[Section]:
    """The first objective against each other one; nothing where there is one alone."""
    names = list(evidence.objectives)
    if len(names) < 2 or not evidence.judged:
        return []
    return [Section("Trade-off", [_trade_off(evidence, names[0], up) for up in names[1:]])]


def _trade_off(evidence: Evidence, across: str, up: str) -> Figure:
    complete = evidence.judged
    palette = _palette(evidence)
    tones = palette.tones
    marks = [
        Mark(row.values[across], row.values[up], tones[row.number], palette.label(row), _hint(evidence, row))
        for row in sorted(complete, key=lambda row: tones[row.number] != "muted")
    ]
    first = [row for number, row in evidence.ranking if number == 1]
    stairs = sorted((row.values[across], row.values[up]) for row in first)
    lines = [Line(stairs, "muted", hint="the front", dashed=True)] if len(stairs) > 1 else []
    drawing = plot(
        _axis(across), _axis(up), lines=lines, marks=marks, summary=f"{up} against {across} of every complete trial"
    )
    ways = " and ".join(
        f"{'more' if evidence.objectives[n] is Direction.MAXIMIZE else 'less'} {spoken(n)}" for n in (across, up)
    )
    caption = (
        f"Every complete trial, of a structure its best rate; better is {ways}. The dashed line joins the front: "
        f"trials that no other beats in {'both' if len(evidence.objectives) == 2 else 'all objectives'}."
    )
    return Figure(drawing, caption)


def _hint(evidence: Evidence, row: Row) -> str:
    values = ", ".join(
        f"{spoken(name)} {shown(name, row.values[name])}" for name in evidence.objectives if name in row.values
    )
    return f"trial {row.number}: {row.name}; {values}"


def learning_curves(evidence: Evidence, front: Collection[str] = ()) -> list[Section]:
    """Each objective that changes with training, against the tokens seen; of entrants the mean over their seeds, where
    there are more than colours of those on the `front` alone.
    """
    crowded = len(evidence.entrants) > COLOURS
    palette = _palette(evidence)
    tones = palette.tones
    rows = sorted((row for row in evidence.rows if row.curve), key=lambda row: tones[row.number] != "muted")
    blocks: list[Block] = []
    for name in evidence.objectives:
        lines = [_curve(evidence, row, name, palette) for row in rows]
        lines += _mean_curves(evidence, name, front if crowded else evidence.entrants)
        lines = [line for line in lines if len(line.points) > 1]
        if not lines or all(len({y for _, y in line.points}) == 1 for line in lines):
            continue
        end = max(x for line in lines for x, _ in line.points)
        lines += [
            Line([(0.0, value), (end, value)], "muted", reference, dashed=True)
            for objective, reference, value in evidence.references
            if objective == name
        ]
        drawing = plot(
            Axis("tokens, all tasks"), _axis(name), lines=lines, summary=f"{name} of every trial while it trained"
        )
        grey = "single seeds" if evidence.entrants else "other trials, some stopped"
        named = " Named: the means of those on the front of all objectives." if crowded else ""
        caption = f"{spoken(name).capitalize()} on held-out data while training; grey: {grey}.{named}"
        blocks.append(Figure(drawing, caption))
    return [Section("Learning curves", blocks)] if blocks else []


def _mean_curves(evidence: Evidence, name: str, entrants: Collection[str]) -> list[Line]:
    """The mean over the seeds of some entrants, where all of them have a value."""
    lines: list[Line] = []
    for index, entrant in enumerate(entrants):
        curves = [{m.tokens: m.values.get(name) for m in r.curve} for r in evidence.rows if r.entrant == entrant]
        curves = [curve for curve in curves if curve]
        shared = sorted(set[int].intersection(*(set(curve) for curve in curves))) if curves else []
        points: list[tuple[float, float]] = []
        for tokens in shared:
            values = [value for curve in curves if (value := curve[tokens]) is not None]
            if len(values) == len(curves):
                points.append((float(tokens), sum(values) / len(values)))
        lines.append(Line(points, tone(index), entrant, f"{entrant}, mean of {counted(len(curves), 'seed')}"))
    return lines


def _curve(evidence: Evidence, row: Row, name: str, palette: _Palette) -> Line:
    points = [(float(m.tokens), m.values[name]) for m in row.curve if name in m.values]
    return Line(points, palette.tones[row.number], palette.label(row), _hint(evidence, row))


def search_course(evidence: Evidence) -> list[Section]:
    """The first objective, trial by trial, and the best of each sampler for the device time that it took."""
    name = next(iter(evidence.objectives))
    palette = _palette(evidence)
    marks = [
        Mark(float(row.number), row.values[name], palette.tones[row.number], hint=_hint(evidence, row))
        for row in evidence.ended(Outcome.COMPLETE)
    ]
    if len(marks) < 2:
        return []
    drawing = plot(Axis("trial"), _axis(name), marks=marks, summary=f"{name} by trial number")
    return [Section("The search", [Figure(drawing, _search_caption(evidence)), *_arms(evidence, name)])]


def _arms(evidence: Evidence, name: str) -> list[Block]:
    found = [arm for arm in arms(evidence) if arm.course]
    if len(found) < 2:
        return []
    lines = [
        Line([*arm.course, (arm.seconds, arm.course[-1][1])], tone(2 * i), f"best of {arm.sampler}", stepped=True)
        for i, arm in enumerate(found)
    ]
    drawing = plot(
        Axis("device seconds of the sampler's trials"), _axis(name), lines=lines, summary=f"best {name} by device time"
    )
    return [Figure(drawing, _arms_caption(found, name, evidence.objectives[name]))]


def _arms_caption(found: Sequence[Arm], name: str, way: Direction) -> str:
    """Which sampler was ahead when the one with the least time had spent it."""
    seconds = min(arm.seconds for arm in found)
    reached = {arm.sampler: value for arm in found if (value := arm.best_by(seconds)) is not None}
    said = ", ".join(f"{sampler} {shown(name, value)}" for sampler, value in reached.items())
    control = reached.pop("random", None)
    verdict = ""
    if control is not None and reached:
        best = max(reached.values()) if way is Direction.MAXIMIZE else min(reached.values())
        ahead = best > control if way is Direction.MAXIMIZE else best < control
        verdict = " The search was ahead of chance." if ahead else " The search was not ahead of chance."
    spent = f"Best {spoken(name)} so far for the device time spent. At {seconds:.0f} s each"
    return f"{spent}: {said}.{verdict} One seed each."


def _search_caption(evidence: Evidence) -> str:
    """How many points were proposed, by whom; other rates and trials of an older study are no proposals."""
    proposals = [row for row in evidence.rows if not (row.is_baseline or row.is_imported) and row.leader is None]
    repeated = len(evidence.ended(Outcome.DUPLICATE))
    control = sum(row.sampler == SamplerKind.RANDOM.value for row in proposals)
    said = (
        f"Complete trials in the order in which they were proposed. Of {len(proposals)} proposals {control} were drawn "
        f"at random as a control and {repeated} repeated an earlier variant (not run)."
    )
    sampler: Mapping[str, object] = evidence.plan.get("config", {}).get("sampler", {})
    is_tpe = sampler.get("kind") == SamplerKind.TPE.value
    return f"{said} The estimator draws its first proposals at random too." if is_tpe else said
