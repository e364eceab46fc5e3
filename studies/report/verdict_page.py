"""Conclusions as tables, drawings and sentences: who won on fresh seeds, by how much, how far it can be trusted."""

import math
from collections.abc import Mapping, Sequence

from archsearch.report.intervals import Bar, forest
from archsearch.report.page import Block, Figure, Section, Text
from archsearch.report.plots import Mark, plot
from archsearch.report.scales import Axis
from archsearch.report.tables import Cell, Column, Table
from archsearch.studies.design.entrants import Role
from archsearch.studies.design.rates import RATE
from archsearch.studies.evidence.comparison import Interval, Judgement, Word
from archsearch.studies.evidence.conclusions import Conclusions, Standing
from archsearch.studies.evidence.pareto import Place, places
from archsearch.studies.evidence.rows import Evidence
from archsearch.studies.evidence.winner import winner_words
from archsearch.studies.evidence.wording import is_share, shown, spoken, within
from archsearch.studies.report.caveats import NO_AA, difference_words, warnings
from archsearch.studies.tasks.direction import Direction

TONES = {Word.WIN: "tone1", Word.LOSS: "tone3", Word.TIE: "tone0", Word.UNDECIDED: "muted"}

NAMED = 14
"""Entrants whose names fit into one drawing; of more only those on the front are named."""

READING = (
    "Each entrant was trained on the same fresh seeds as the baseline, which the search never used; a seed fixes both "
    "the initialisation and the order of the data. Differences are paired by seed; the interval is Student's t at "
    "95 %, or the one over seeds and documents (texts, or the sequences of a recall task) where that is wider. Win and "
    "loss are Holm-corrected over the finalists. A tie is an interval inside the band in which a difference does not "
    "matter. Values are of test data, which no trial of the search read."
)


def verdict_sections(evidence: Evidence, concluded: Conclusions, aa: Sequence[str]) -> list[Section]:
    """The head of a report of finals: what is said, how far it can be trusted, the verdicts, how they are read. aa:
    what an A/A study says, its false winners first.
    """
    leads = winner_words(evidence, concluded)
    blocks: list[Block] = [] if leads is None else [Text(f"{leads}. An export takes this one.")]
    blocks += [Text(summary(concluded, objective)) for objective in evidence.objectives]
    blocks.append(Text(aa[0], quiet=True) if aa else Text(NO_AA, warning=True))
    blocks += [Text(line, warning=True) for line in warnings(evidence, concluded)]
    for objective in evidence.objectives:
        blocks += _of_objective(evidence, concluded, objective)
    blocks += [Text(READING, quiet=True), *(Text(line, quiet=True) for line in aa[1:])]
    return [Section(f"Verdicts against {concluded.against}", blocks), *_choice(evidence, concluded)]


def summary(concluded: Conclusions, objective: str) -> str:
    """`Recall: x wins; kda loses; 2 tie, 1 undecided.`"""
    family = concluded.judgements[objective]
    named = [
        _named(names, verb)
        for word, verb in ((Word.WIN, "wins"), (Word.LOSS, "loses"))
        if (names := [judgement.name for judgement in family if judgement.word is word])
    ]
    counts = {word: sum(judgement.word is word for judgement in family) for word in (Word.TIE, Word.UNDECIDED)}
    others = [f"{count} {word.value}" for word, count in counts.items() if count]
    said = "; ".join([*named, *([", ".join(others)] if others else [])])
    return f"{spoken(objective).capitalize()}: {said or 'nobody else entered'}."


def _named(names: Sequence[str], verb: str) -> str:
    """`x wins`, `x and y win`, `3 win (x; y; z)`: names have commas of their own."""
    if len(names) == 1:
        return f"{names[0]} {verb}"
    plural = verb.removesuffix("s")
    return f"{' and '.join(names)} {plural}" if len(names) == 2 else f"{len(names)} {plural} ({'; '.join(names)})"


def verdict_table(evidence: Evidence, concluded: Conclusions, objective: str) -> Table:
    """Every entrant in one objective: its mean on fresh seeds, the paired difference, the word and its reason; then
    trivial predictors.
    """
    direction = evidence.objectives[objective]
    share = is_share(objective)
    digits = 2 if share else 4
    arrow = "↑" if direction is Direction.MAXIMIZE else "↓"
    points = "points" if share else ""
    columns = [
        Column("entrant", "entrant", wide=True),
        Column("verdict", "verdict"),
        Column("mean", f"{spoken(objective)} {arrow}", digits=digits, percent=share),
        Column("half", "±", digits=digits, points=share),
        Column("difference", "difference", digits=digits, points=share, unit=points),
        Column("low", "from", digits=digits, points=share),
        Column("high", "to", digits=digits, points=share),
        Column("p", "p, Holm", digits=3),
        Column("seeds", "seeds"),
        Column("reason", "why", wide=True),
        Column("searched", "search", digits=digits, percent=share, quiet=True, aside=True),
        Column("median", "median difference", digits=digits, points=share, aside=True),
        Column("deviation", "deviation over seeds", digits=digits, points=share, aside=True),
        Column("each", "each seed", unit="%" if share else "", aside=True, wide=True),
        Column("band", "band", digits=digits, points=share, aside=True),
        Column("role", "role", aside=True),
    ]
    if any(_rate(s) is not None for s in concluded.standings.values()):
        columns.append(Column("rate", "rate", unit="peak", aside=True))
    found = {judgement.name: judgement for judgement in concluded.judgements[objective]}
    ordered = sorted(concluded.standings.values(), key=lambda s: _merit(s, objective, direction))
    rows = [_row(s, found.get(s.name), objective) for s in ordered]
    marks = {i: _mark(s, found.get(s.name)) for i, s in enumerate(ordered)}
    trivial = [(name, value) for goal, name, value in evidence.references if goal == objective]
    marks |= {len(rows) + i: "reference" for i in range(len(trivial))}
    rows += [{"entrant": name, "mean": value, "role": "reference"} for name, value in trivial]
    return Table(f"verdicts_{objective}", columns, rows, marks)


def _merit(standing: Standing, objective: str, direction: Direction) -> float:
    if objective not in standing.means:
        return math.inf
    mean = standing.means[objective].mean
    return mean if direction is Direction.MINIMIZE else -mean


def _row(standing: Standing, judgement: Judgement | None, objective: str) -> dict[str, Cell]:
    mean = standing.means.get(objective)
    row: dict[str, Cell] = {
        "entrant": standing.name,
        "role": standing.role.value,
        "rate": _rate(standing),
        "mean": None if mean is None else mean.mean,
        "half": None if mean is None else _finite(mean.high - mean.mean),
        "seeds": 0 if mean is None else mean.n,
        "searched": standing.scores.get(objective),
        "each": _each(standing, objective),
    }
    if judgement is None:
        return {**row, "verdict": "baseline"}
    return {
        **row,
        "verdict": judgement.word.value,
        "difference": _finite(judgement.difference.mean),
        "low": _finite(judgement.difference.low),
        "high": _finite(judgement.difference.high),
        "median": _finite(judgement.median),
        "deviation": _finite(judgement.deviation),
        "p": judgement.corrected,
        "seeds": judgement.difference.n,
        "band": judgement.band,
        "reason": judgement.reason,
    }


def _each(standing: Standing, objective: str) -> str | None:
    """What every seed reached, by rising seed: means hide seeds of two kinds."""
    rows = sorted(standing.complete, key=lambda row: row.seed or 0)
    share = is_share(objective)
    values = [f"{100 * row.values[objective]:.1f}" if share else f"{row.values[objective]:.3f}" for row in rows]
    return " ".join(values) or None


def _rate(standing: Standing) -> float | None:
    """The learning rate that an entrant came with, where rates differ by choice."""
    return next((row.learning_rate for row in standing.rows if RATE in row.choices), None)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _mark(standing: Standing, judgement: Judgement | None) -> str:
    if judgement is None:
        return "baseline"
    return "winner" if judgement.word is Word.WIN else ""


def _of_objective(evidence: Evidence, concluded: Conclusions, objective: str) -> list[Block]:
    direction = evidence.objectives[objective]
    blocks: list[Block] = [verdict_table(evidence, concluded, objective)]
    judged = [j for j in concluded.judgements[objective] if math.isfinite(j.difference.mean)]
    if judged:
        better = "right" if direction is Direction.MAXIMIZE else "left"
        bars = [_bar(judgement, objective) for judgement in judged]
        share = is_share(objective)
        unit = ", in points" if share else ""
        axis = Axis(f"{spoken(objective)}, difference from {concluded.against}{unit}", points=share)
        band = max(judgement.band for judgement in judged)
        drawing = forest(axis, bars, band=band, summary=f"paired differences in {objective} with their intervals")
        blocks.append(
            Figure(drawing, f"Paired differences in {spoken(objective)}; better is {better}. Shaded: the band of ties.")
        )
    return blocks


def _bar(judgement: Judgement, objective: str) -> Bar:
    difference = judgement.difference
    said = [difference_words(objective, value) for value in (difference.mean, difference.low, difference.high)]
    hint = f"{judgement.name}: {said[0]} from {said[1]} to {said[2]}; {judgement.reason}"
    return Bar(
        judgement.name,
        difference.mean,
        difference.low,
        difference.high,
        TONES[judgement.word],
        judgement.word.value,
        hint=hint,
    )


def _choice(evidence: Evidence, concluded: Conclusions) -> list[Section]:
    """What the search had measured on its own seed, in grey, against the finals: the winner's curse."""
    blocks: list[Block] = []
    for objective in evidence.objectives:
        bars = [
            Bar(s.name, mean.mean, *_bounds(objective, mean), _ink(s), s.role.value, s.scores.get(objective))
            for s in concluded.standings.values()
            if (mean := s.means.get(objective)) is not None
        ]
        if not bars or all(bar.ghost is None for bar in bars):
            continue
        drawing = forest(
            Axis(spoken(objective), percent=is_share(objective)),
            bars,
            origin=False,
            summary=f"{objective} of the search and of the finals",
        )
        caption = (
            f"{spoken(objective).capitalize()}: grey rings are what the search measured on the one seed that it chose "
            "by, on validation data; filled is the mean over fresh seeds with its interval, on test data."
        )
        blocks.append(Figure(drawing, caption))
    return [Section("Search and finals", blocks)] if blocks else []


def _ink(standing: Standing) -> str:
    return "ink" if standing.role is not Role.BASELINE else "tone0"


def pareto_section(evidence: Evidence, concluded: Conclusions) -> list[Section]:
    """The first objective against each other one, each entrant with its intervals."""
    names = list(evidence.objectives)
    found = places(evidence, concluded)
    if len(names) < 2 or not found:
        return []
    figures = [_front_figure(found, names[0], up, len(names)) for up in names[1:]]
    return [Section("Trade-off on fresh seeds", [*figures, pareto_table(found, evidence.objectives)])]


def _front_figure(found: Sequence[Place], across: str, up: str, objectives: int) -> Figure:
    marks = [_placed(place, across, up, named=place.on_front or len(found) <= NAMED) for place in found]
    drawing = plot(
        Axis(spoken(across), percent=is_share(across)),
        Axis(spoken(up), percent=is_share(up)),
        marks=marks,
        summary=f"{up} against {across} of every entrant with intervals",
    )
    caption = (
        "Means over fresh seeds with 95 % intervals of each mean. Filled: on the front, no other has better means in "
        f"{'both' if objectives == 2 else 'all objectives'}; rings: off it. Intervals of means overlap more than "
        "paired differences do: the verdicts above count."
    )
    return Figure(drawing, caption)


def _placed(place: Place, across: str, up: str, *, named: bool) -> Mark:
    x, y = place.values[across], place.values[up]
    tone = "tone0" if place.is_baseline else ("winner" if place.on_front else "muted")
    hint = f"{place.name}: {shown(across, x.mean)}, {shown(up, y.mean)}, {x.n} seeds"
    return Mark(
        x.mean,
        y.mean,
        tone,
        place.name if named else "",
        hint,
        hollow=not place.on_front,
        across=_ends(across, x),
        up=_ends(up, y),
    )


def _ends(objective: str, interval: Interval) -> tuple[float, float] | None:
    return _bounds(objective, interval) if math.isfinite(interval.low) else None


def _bounds(objective: str, interval: Interval) -> tuple[float, float]:
    return within(objective, interval.low), within(objective, interval.high)


def pareto_table(found: Sequence[Place], objectives: Mapping[str, Direction]) -> Table:
    """The entrants or trials with their values, intervals and what beats them."""
    columns = [Column("name", "variant", wide=True), Column("front", "on the front"), Column("seeds", "seeds")]
    for name in objectives:
        share = is_share(name)
        digits = 2 if share else 4
        columns += [
            Column(name, spoken(name), digits=digits, percent=share),
            Column(f"{name}_low", "from", digits=digits, percent=share),
            Column(f"{name}_high", "to", digits=digits, percent=share),
        ]
    columns.append(Column("beaten_by", "beaten by", wide=True))
    return Table("pareto", columns, [place.row() for place in found], {})
