"""The report of a study: what was asked, what came out, what may be believed; one page, its tables beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from archsearch.dsl import parse_rule
from archsearch.lowering.display import equation
from archsearch.mixers.zoo import rules
from archsearch.report.page import Block, Code, Equation, Facts, Page, Section, Text, Tiles
from archsearch.report.tables import Cell, Column, Table
from archsearch.studies import records
from archsearch.studies.directory import StudyDirectory
from archsearch.studies.evidence import Evidence, Row, read_evidence
from archsearch.studies.figures import learning_curves, search_course, trade_off
from archsearch.studies.fronts import Direction
from archsearch.studies.outcomes import Outcome
from archsearch.studies.rungs import Decision, read_decisions
from archsearch.studies.wording import is_share, shown, spoken

SCREENING = (
    "One seed a trial: these scores screen, they do not conclude. Differences of this size come from the seed alone "
    "as well; the best of many looks better than it is."
)


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
        *trade_off(evidence),
        *learning_curves(evidence),
        *search_course(evidence),
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
    share = is_share(name)
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
    share = is_share(name)
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
