"""The report of a study: what was asked, what came out, what may be believed; one page, its tables beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from archsearch.dsl import parse_rule
from archsearch.lowering.display import equation
from archsearch.mixers.zoo import rules
from archsearch.report.page import Block, Code, Equation, Facts, Figure, Page, Section, Text, Tiles
from archsearch.report.plots import Line, Mark, plot
from archsearch.report.scales import Axis
from archsearch.report.tables import Cell, Column, Table
from archsearch.studies import records
from archsearch.studies.directory import StudyDirectory
from archsearch.studies.evidence import Evidence, Row, read_evidence
from archsearch.studies.fronts import Direction
from archsearch.studies.outcomes import Outcome
from archsearch.studies.rungs import Decision, read_decisions

SCREENING = (
    "One seed a trial: these scores screen, they do not conclude. Differences of this size come from the seed alone "
    "as well; the best of many looks better than it is."
)
SHARES = ("recall", "accuracy")
"""Beginnings of the names of values that are shares of 1."""


def write_report(directory: StudyDirectory) -> Path:
    """Write index.html with its tables as CSV and JSON into the study's report folder; the page's path."""
    evidence = read_evidence(directory)
    page = build_page(evidence, read_decisions(directory.rungs), str(directory.path))
    directory.report.mkdir(parents=True, exist_ok=True)
    for table in page.tables:
        records.write_text(directory.report / f"{table.name}.csv", table.csv())
        records.write_text(directory.report / f"{table.name}.json", table.json())
    path = directory.report / "index.html"
    records.write_text(path, page.html())
    return path


def build_page(evidence: Evidence, decisions: Sequence[Decision], place: str) -> Page:
    """The page; `place` is the study's directory as commands name it."""
    sections = [
        _outcome(evidence),
        *_winner(evidence),
        Section("Ranking", [Text(SCREENING, quiet=True), ranking_table(evidence)]),
        *_trade_off(evidence),
        *_curves(evidence),
        *_search(evidence),
        *_rungs(evidence, decisions),
        *_failures(evidence),
        _question(evidence, place),
    ]
    names = " and ".join(spoken(name) for name in evidence.objectives)
    tasks = "; ".join(str(task["description"]) for task in evidence.plan.get("tasks", {}).values())
    return Page(f"Study of {names}", tasks, sections)


# What came out


def _outcome(evidence: Evidence) -> Section:
    winner = evidence.winner
    tiles: list[tuple[str, str]] = []
    if winner is not None:
        tiles += [(shown(name, winner.values[name]), f"{spoken(name)} of the winner") for name in evidence.objectives]
        for name, way in evidence.objectives.items():
            best = _best_baseline(evidence, name, way)
            if best is not None:
                tiles.append((shown(name, best.values[name]), f"{spoken(name)} of {best.name}, the best baseline"))
    counts = _counts(evidence)
    tiles.append((str(len(evidence.rows)), ", ".join(f"{count} {name}" for name, count in counts.items())))
    tiles.append((f"{sum(row.seconds for row in evidence.rows) / 60:.1f} min", "of training, all trials"))
    return Section("Outcome", [Tiles(tiles)])


def _counts(evidence: Evidence) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in evidence.rows:
        name = row.outcome.value if row.outcome else "unfinished"
        counts[name] = counts.get(name, 0) + 1
    return counts


def _best_baseline(evidence: Evidence, objective: str, way: Direction) -> Row | None:
    complete = [row for row in evidence.ended(Outcome.COMPLETE) if row.is_baseline]
    sign = 1 if way is Direction.MINIMIZE else -1
    return min(complete, key=lambda row: sign * row.values[objective], default=None)


def _winner(evidence: Evidence) -> list[Section]:
    winner = evidence.winner
    if winner is None:
        return []
    rule = parse_rule(winner.rule)
    known = next((name for name in rules if rules[name].hash == rule.hash), None)
    caption = f"Trial {winner.number}: {winner.name}." + (f" The rule is {known} of the zoo." if known else "")
    choices = {
        path: f"{value:.4g}" if isinstance(value, float) else str(value) for path, value in winner.choices.items()
    }
    return [
        Section(
            "The winning rule",
            [Equation(equation(rule).splitlines(), caption), Facts(choices), Code(str(rule))],
        )
    ]


def ranking_table(evidence: Evidence) -> Table:
    """Complete trials in order, then what else ran, then trivial predictors."""
    columns = [
        Column("rank", "#"),
        Column("trial", "trial"),
        Column("name", "variant", wide=True),
        Column("origin", "origin"),
        *(_objective_column(name, way) for name, way in evidence.objectives.items()),
        Column("front", "front"),
        Column("outcome", "outcome"),
        *_extra_columns(evidence),
    ]
    rows: list[dict[str, Cell]] = []
    marks: dict[int, str] = {}
    for rank, (number, row) in enumerate(evidence.ranking, start=1):
        marks[len(rows)] = "winner" if rank == 1 else ("baseline" if row.is_baseline else "")
        rows.append({**_cells(evidence, row), "rank": rank, "front": number})
    unranked = [row for row in evidence.rows if row.outcome not in (Outcome.COMPLETE, Outcome.DUPLICATE)]
    for row in sorted(unranked, key=lambda row: -row.tokens):
        marks[len(rows)] = "ended"
        rows.append(_cells(evidence, row))
    for objective, name, value in evidence.references:
        marks[len(rows)] = "reference"
        rows.append({"name": name, "origin": "reference", objective: value})
    return Table("ranking", columns, rows, marks)


def _objective_column(name: str, way: Direction) -> Column:
    arrow = "↑" if way is Direction.MAXIMIZE else "↓"
    share = name.startswith(SHARES)
    return Column(name, f"{spoken(name)} {arrow}", digits=1 if share else 3, percent=share)


def _extra_columns(evidence: Evidence) -> list[Column]:
    """Numbers that all variants have in common, and the learning rate."""
    titles = {
        "learning_rate": Column("learning_rate", "rate", unit="peak"),
        "parameters": Column("parameters", "parameters"),
        "state_bytes": Column("state_bytes", "state", unit="bytes"),
    }
    shown_keys = {key for row in evidence.rows for key, value in _cells(evidence, row).items() if value is not None}
    return [column for key, column in titles.items() if key in shown_keys and key not in evidence.objectives]


def _cells(evidence: Evidence, row: Row) -> dict[str, Cell]:
    whole = {key: _whole(row.details.get(key)) for key in ("parameters", "state_bytes")}
    return {
        "trial": row.number,
        "name": row.name,
        "origin": "baseline" if row.is_baseline else row.sampler or row.origin,
        "outcome": row.outcome.value if row.outcome else "unfinished",
        "learning_rate": row.choices.get("training/learning_rate"),
        "tokens": row.tokens,
        **whole,
        **{name: row.values.get(name) for name in evidence.objectives},
    }


def _whole(value: Any) -> int | None:
    return None if value is None else round(float(value))


def spoken(name: str) -> str:
    """The name of a value in words."""
    return name.replace("_", " ")


def shown(name: str, value: float) -> str:
    """A value of an objective as text."""
    return f"{100 * value:.1f} %" if name.startswith(SHARES) else f"{value:.3f}"


# Plots


def _tones(evidence: Evidence) -> dict[int, str]:
    """A colour for every trial: the winner's, one for each baseline, grey."""
    baselines = [row.number for row in evidence.rows if row.is_baseline]
    tones = {row.number: "muted" for row in evidence.rows}
    tones |= {number: f"tone{i % 8}" for i, number in enumerate(baselines)}
    winner = evidence.winner
    return tones if winner is None else {**tones, winner.number: "winner"}


def _axis(name: str, *, log: bool = False) -> Axis:
    return Axis(spoken(name), log=log, percent=name.startswith(SHARES))


def _trade_off(evidence: Evidence) -> list[Section]:
    """The first two objectives against each other; with one, the objective against the state's bytes."""
    names = list(evidence.objectives)
    complete = evidence.ended(Outcome.COMPLETE)
    if len(names) < 2 or not complete:
        return []
    across, up = names[0], names[1]
    tones = _tones(evidence)
    marks = [
        Mark(row.values[across], row.values[up], tones[row.number], _label(evidence, row), _hint(evidence, row))
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
        f"Every complete trial; better is {ways}. The dashed line joins the front: trials that no other beats in both."
    )
    return [Section("Trade-off", [Figure(drawing, caption)])]


def _label(evidence: Evidence, row: Row) -> str:
    if evidence.winner is not None and row.number == evidence.winner.number:
        return f"winner: {row.name}" if row.is_baseline else f"winner (trial {row.number})"
    return row.name if row.is_baseline else ""


def _hint(evidence: Evidence, row: Row) -> str:
    values = ", ".join(f"{name} {shown(name, row.values[name])}" for name in evidence.objectives if name in row.values)
    return f"trial {row.number}: {row.name}; {values}"


def _curves(evidence: Evidence) -> list[Section]:
    tones = _tones(evidence)
    rows = sorted((row for row in evidence.rows if row.curve), key=lambda row: tones[row.number] != "muted")
    blocks: list[Block] = []
    for name in evidence.objectives:
        lines = [_curve(evidence, row, name, tones[row.number]) for row in rows]
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
        caption = f"{spoken(name).capitalize()} on held-out data while training; grey: other trials, some stopped."
        blocks.append(Figure(drawing, caption))
    return [Section("Learning curves", blocks)] if blocks else []


def _curve(evidence: Evidence, row: Row, name: str, tone: str) -> Line:
    points = [(float(m.tokens), m.values[name]) for m in row.curve if name in m.values]
    return Line(points, tone, _label(evidence, row), _hint(evidence, row))


def _search(evidence: Evidence) -> list[Section]:
    """The first objective's best so far, proposal by proposal, of each sampler."""
    name, way = next(iter(evidence.objectives.items()))
    better = max if way is Direction.MAXIMIZE else min
    lines: list[Line] = []
    for tone, sampler in (("tone0", "tpe"), ("tone2", "random")):
        best: list[tuple[float, float]] = []
        rows = [r for r in evidence.ended(Outcome.COMPLETE) if r.sampler == sampler]
        for row in rows:
            value = row.values[name]
            best.append((float(row.number), value if not best else better(best[-1][1], value)))
        if best:
            lines.append(Line(best, tone, f"best of {sampler}", stepped=True))
    marks = [
        Mark(float(row.number), row.values[name], _tones(evidence)[row.number], hint=_hint(evidence, row))
        for row in evidence.ended(Outcome.COMPLETE)
    ]
    if len(marks) < 2:
        return []
    drawing = plot(Axis("trial"), _axis(name), lines=lines, marks=marks, summary=f"{name} by trial number")
    return [Section("The search", [Figure(drawing, _search_caption(evidence))])]


def _search_caption(evidence: Evidence) -> str:
    proposals = [row for row in evidence.rows if not row.is_baseline]
    duplicates = len(evidence.ended(Outcome.DUPLICATE))
    startup = sum(row.sampler == "random" for row in proposals)
    return (
        f"Complete trials in the order in which they were proposed. Of {len(proposals)} proposals {startup} were drawn "
        f"at random as a control and {duplicates} repeated an earlier variant (not run). The estimator draws its first "
        "proposals at random too."
    )


# Tables


def _rungs(evidence: Evidence, decisions: Sequence[Decision]) -> list[Section]:
    if not decisions:
        return []
    columns = [
        Column("rung", "rung"),
        Column("tokens", "tokens"),
        Column("arrived", "arrived"),
        Column("stopped", "stopped"),
        *(_best_column(name) for name in evidence.objectives),
    ]
    rows = [
        rung_summary([d for d in decisions if d.rung == rung], evidence.objectives)
        for rung in sorted({d.rung for d in decisions})
    ]
    text = (
        "At a rung a trial is compared with all that came before it and goes on if it is among the best; "
        "baselines and free passes always go on."
    )
    return [Section("Rungs", [Text(text, quiet=True), Table("rungs", columns, rows, {})])]


def _best_column(name: str) -> Column:
    share = name.startswith(SHARES)
    return Column(f"best_{name}", f"best {spoken(name)}", digits=1 if share else 3, percent=share)


def rung_summary(decisions: Sequence[Decision], objectives: Mapping[str, Direction]) -> dict[str, Cell]:
    """One line about the decisions of one rung."""
    best: dict[str, Cell] = {}
    for name, way in objectives.items():
        values = [decision.values[name] for decision in decisions]
        best[f"best_{name}"] = max(values) if way is Direction.MAXIMIZE else min(values)
    return {
        "rung": decisions[0].rung,
        "tokens": decisions[0].tokens,
        "arrived": len(decisions),
        "stopped": sum(decision.stop for decision in decisions),
        **best,
    }


def _failures(evidence: Evidence) -> list[Section]:
    quiet = (Outcome.COMPLETE, Outcome.STOPPED, Outcome.DUPLICATE)
    classes = [outcome for outcome in Outcome if outcome not in quiet and evidence.ended(outcome)]
    if not classes:
        return []
    columns = [
        Column("outcome", "class"),
        Column("trials", "trials"),
        Column("example", "example", wide=True),
        Column("message", "what happened", wide=True),
    ]
    rows: list[dict[str, Cell]] = []
    for outcome in classes:
        ended = evidence.ended(outcome)
        rows.append(
            {
                "outcome": outcome.value,
                "trials": len(ended),
                "example": f"trial {ended[0].number}: {ended[0].name}",
                "message": ended[0].message,
            }
        )
    return [Section("What failed", [Table("failures", columns, rows, {})])]


# What was asked


def _question(evidence: Evidence, place: str) -> Section:
    plan = evidence.plan
    config: Mapping[str, Any] = plan.get("config", {})
    budgets = {f"tokens of {name}": f"{task['tokens']:,}" for name, task in plan.get("tasks", {}).items()}
    facts = {
        "objectives": ", ".join(f"{way.value} {name}" for name, way in evidence.objectives.items()),
        **budgets,
        "rungs at tokens": ", ".join(f"{tokens:,}" for tokens in plan["rung_tokens"]),
        "seed": str(plan["fixed"]["seed"]),
        "baselines": ", ".join(plan.get("baselines", {})) or "none",
        "begun": str(plan["created"]),
        **{name: str(version) for name, version in plan["versions"].items()},
    }
    commands = f"archsearch study run {place}      # go on\narchsearch study report {place}   # this page again"
    blocks: list[Block] = [Facts(facts), Code(commands), Code(str(plan.get("space", "")), "The space")]
    if config:
        blocks.append(Code(_yaml(config), "The configuration"))
    data = {name: str(task["data_hash"]) for name, task in plan.get("tasks", {}).items()}
    blocks.append(Facts({f"data of {name}": digest[:16] for name, digest in data.items()}))
    return Section("What was asked", blocks)


def _yaml(config: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(config), sort_keys=False))
