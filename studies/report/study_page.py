"""The report of a study: what was asked, what came out, what may be believed; one page, its tables beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from archsearch.dsl import parse_rule
from archsearch.errors import StudyError
from archsearch.lowering.display import equation
from archsearch.mixers.zoo import rules
from archsearch.report.page import Block, Code, Equation, Facts, Page, Section, Text, Tiles
from archsearch.report.tables import Cell, Column, Table
from archsearch.report.words import counted
from archsearch.studies.design.rates import RATE
from archsearch.studies.evidence.conclusions import Conclusions, conclude
from archsearch.studies.evidence.findings import wall_seconds
from archsearch.studies.evidence.pareto import places
from archsearch.studies.evidence.pool import FINALS_FOLDER
from archsearch.studies.evidence.rows import Evidence, Row, read_evidence
from archsearch.studies.evidence.wording import is_share, shown, spoken
from archsearch.studies.files import records
from archsearch.studies.files.decisions import Decision, read_decisions
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.report.caveats import aa_beside, warnings
from archsearch.studies.report.failures_page import failures
from archsearch.studies.report.figures import learning_curves, search_course, trade_off
from archsearch.studies.report.findings_page import (
    cost_section,
    importance_section,
    rate_section,
    rules_section,
    rung_section,
)
from archsearch.studies.report.matched_page import matched_section
from archsearch.studies.report.rate_page import swept_section
from archsearch.studies.report.speed_page import speed_section
from archsearch.studies.report.verdict_page import pareto_section, verdict_sections
from archsearch.studies.tasks.direction import Direction

SCREENING = (
    "One seed a trial: these scores screen, they do not conclude. Differences of this size come from the seed alone "
    "as well; the best of many looks better than it is."
)


def write_report(directory: StudyDirectory) -> Path:
    """Write index.html with its tables as CSV and JSON into the study's report folder; the page's path.

    The same files give the same bytes.
    """
    page = page_of(directory, str(directory.path))
    directory.report.mkdir(parents=True, exist_ok=True)
    for table in page.tables:
        records.write_text(directory.report / f"{table.name}.csv", table.csv())
        records.write_text(directory.report / f"{table.name}.json", table.json())
    path = directory.report / "index.html"
    records.write_text(path, page.html())
    return path


def keep_report(directory: StudyDirectory, place: Path) -> list[Path]:
    """Write what is worth keeping of a study into `place`: the page, its tables as Markdown in one file and as CSV; the
    files. The page names the study by the last part of its path, since it may be read where the study is not.
    StudyError for a place in the study itself.
    """
    if place.resolve().is_relative_to(directory.path.resolve()):
        raise StudyError(
            f"what is kept of a study must lie outside of it, to outlive it; {place} lies in {directory.path}: choose "
            "another directory"
        )
    page = page_of(directory, f"runs/{directory.path.resolve().name}")
    place.mkdir(parents=True, exist_ok=True)
    files = {"report.html": page.html(), "tables.md": page.markdown()}
    files |= {f"{table.name}.csv": table.csv() for table in page.tables}
    for name, text in files.items():
        records.write_text(place / name, text)
    return [place / name for name in files]


def page_of(directory: StudyDirectory, place: str) -> Page:
    """The page of a study, `place` as `build_page` has it."""
    finals = StudyDirectory(directory.path / FINALS_FOLDER)
    return build_page(
        read_evidence(directory),
        read_decisions(directory.rungs),
        place,
        finals=read_evidence(finals) if finals.exists() else None,
        aa=aa_beside(directory.path),
    )


def build_page(
    evidence: Evidence,
    decisions: Sequence[Decision],
    place: str,
    *,
    finals: Evidence | None = None,
    aa: Sequence[str] = (),
) -> Page:
    """The page; `place` is the study's directory as commands name it.

    finals: of a search, what they have so far; their verdicts lead. aa: what an A/A study says, in sentences.
    """
    concluded = conclude(evidence)
    sections: list[Section] = []
    if concluded is not None:
        sections += _of_finals(evidence, concluded, aa)
    else:
        ahead = None if finals is None else conclude(finals)
        budgets = matched_section(evidence)
        if finals is not None and ahead is not None:
            of_finals = matched_section(finals, ahead)
            sections += [*verdict_sections(finals, ahead, aa), *of_finals, *pareto_section(finals, ahead)]
            aa, budgets = (), [] if of_finals else budgets
        sections += _of_search(evidence, decisions, aa, budgets, "" if ahead is None else " of the search")
    sections += [*cost_section(evidence), failures(evidence), _question(evidence, place)]
    names = " and ".join(spoken(name) for name in evidence.objectives)
    tasks = "; ".join(str(task["description"]) for task in evidence.plan.get("tasks", {}).values())
    return Page(f"{'Study' if concluded is None else 'Finals'} of {names}", tasks, sections)


def _of_search(
    evidence: Evidence, decisions: Sequence[Decision], aa: Sequence[str], budgets: Sequence[Section], of: str
) -> list[Section]:
    """What screening shows; the scores are in grey, since they do not conclude. budgets: the section on whether they
    are equal, unless the finals have it. of: behind the titles that would be taken for the finals'.
    """
    return [
        _outcome(evidence, aa, of),
        *_winner(evidence, of),
        Section("Ranking", [Text(SCREENING, quiet=True), ranking_table(evidence)]),
        *budgets,
        *trade_off(evidence),
        *speed_section(evidence),
        *rate_section(evidence),
        *learning_curves(evidence),
        *search_course(evidence),
        *importance_section(evidence),
        *rung_section(evidence, decisions),
        *rules_section(_leading(evidence), names_by_hash()),
    ]


def _of_finals(evidence: Evidence, concluded: Conclusions, aa: Sequence[str]) -> list[Section]:
    """What fresh seeds conclude."""
    rows = [standing.rows[0] for standing in concluded.standings.values() if standing.rows]
    return [
        *verdict_sections(evidence, concluded, aa),
        *matched_section(evidence, concluded),
        *pareto_section(evidence, concluded),
        *speed_section(evidence, concluded),
        *swept_section(evidence, concluded, names_by_hash()),
        *learning_curves(evidence, [place.name for place in places(evidence, concluded) if place.on_front]),
        *rules_section(rows, names_by_hash()),
    ]


def _leading(evidence: Evidence) -> list[Row]:
    """The baselines, then the best."""
    ranked = [row for _, row in evidence.ranking]
    return [row for row in ranked if row.is_baseline] + [row for row in ranked if not row.is_baseline]


def names_by_hash() -> dict[str, str]:
    """The first name in the zoo of each rule."""
    return {rules[name].hash: name for name in reversed(list(rules))}


# What came out


def _outcome(evidence: Evidence, aa: Sequence[str], of: str) -> Section:
    winner = evidence.winner
    tiles: list[tuple[str, str]] = []
    if winner is not None:
        tiles += [(shown(name, winner.values[name]), f"{spoken(name)} of the winner") for name in evidence.objectives]
        for name, way in evidence.objectives.items():
            best = _best_baseline(evidence, name, way)
            if best is not None:
                tiles.append((shown(name, best.values[name]), f"{spoken(name)} of {best.name}, the best baseline"))
    tiles += [_trials(evidence), _time(evidence)]
    warned = [Text(line, warning=True) for line in warnings(evidence)]
    return Section(f"Outcome{of}", [Tiles(tiles), *warned, *(Text(line, quiet=True) for line in aa)])


def _trials(evidence: Evidence) -> tuple[str, str]:
    """How many trials there are and how they ended; proposals that repeated another are none."""
    running = sum(row.outcome is None for row in evidence.rows)
    counts = {**evidence.outcomes, **({"unfinished": running} if running else {})}
    repeated = counts.pop(Outcome.DUPLICATE.value, 0)
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    more = f"; {counted(repeated, 'proposal')} more repeated one" if repeated else ""
    return str(sum(counts.values())), f"{said or 'none'}{more}"


def _time(evidence: Evidence) -> tuple[str, str]:
    """How long the study trained: by the wall where trials kept when they did, else what they took together."""
    rows = [row for row in evidence.rows if not row.is_imported]
    seconds, wall = sum(row.seconds for row in rows), wall_seconds(rows)
    if wall is None:
        return f"{seconds / 60:.1f} min", "of training, all trials of this study"
    return f"{wall / 60:.1f} min", f"in which some trial trained; {seconds / 60:.1f} min of all, which shared devices"


def _best_baseline(evidence: Evidence, objective: str, way: Direction) -> Row | None:
    baselines = [row for row in evidence.judged if row.is_baseline]
    sign = 1 if way is Direction.MINIMIZE else -1
    return min(baselines, key=lambda row: sign * row.values[objective], default=None)


def _winner(evidence: Evidence, of: str) -> list[Section]:
    winner = evidence.winner
    if winner is None:
        return []
    rule = parse_rule(winner.rule)
    known = names_by_hash().get(rule.hash)
    caption = f"Trial {winner.number}: {winner.name}." + (f" The rule is {known} of the zoo." if known else "")
    front = sum(number == 1 for number, _ in evidence.ranking)
    if front > 1:
        first = spoken(next(iter(evidence.objectives)))
        caption += f" Of {front} that no other beats in all objectives, on one seed, it is the best in {first}."
    choices = {
        path: f"{value:.4g}" if isinstance(value, float) else str(value) for path, value in winner.choices.items()
    }
    return [
        Section(
            f"The winning rule{of}",
            [Equation(equation(rule).splitlines(), caption), Facts(choices), Code(str(rule))],
        )
    ]


def ranking_table(evidence: Evidence) -> Table:
    """The judged trials in order, then what else ran, at other rates or not to the end, then trivial predictors."""
    columns = [
        Column("rank", "#"),
        Column("trial", "trial"),
        Column("name", "variant", wide=True),
        Column("origin", "origin", aside=True),
        *(_objective_column(name, way) for name, way in evidence.objectives.items()),
        Column("front", "front"),
        Column("outcome", "outcome"),
        *_extra_columns(evidence),
        Column("reason", "why it has no rank", wide=True),
    ]
    rows: list[dict[str, Cell]] = []
    marks: dict[int, str] = {}
    for rank, (number, row) in enumerate(evidence.ranking, start=1):
        marks[len(rows)] = "winner" if rank == 1 else ("baseline" if row.is_baseline else "")
        rows.append({**_cells(evidence, row), "rank": rank, "front": number})
    for row, reason in evidence.unranked:
        marks[len(rows)] = "ended"
        rows.append({**_cells(evidence, row), "reason": reason})
    for objective, name, value in evidence.references:
        marks[len(rows)] = "reference"
        rows.append({"name": name, "origin": "reference", objective: value})
    return Table("ranking", columns, rows, marks)


def _objective_column(name: str, way: Direction) -> Column:
    arrow = "↑" if way is Direction.MAXIMIZE else "↓"
    share = is_share(name)
    return Column(name, f"{spoken(name)} {arrow}", digits=1 if share else 3, percent=share, quiet=True)


def _extra_columns(evidence: Evidence) -> list[Column]:
    """What is told of every trial where it is known of one; the seeds where a variant met several."""
    titles = {
        "seeds": Column("seeds", "seeds"),
        "learning_rate": Column("learning_rate", "rate", unit="peak"),
        "parameters": Column("parameters", "parameters", aside=True),
        "state_bytes": Column("state_bytes", "state", unit="bytes", aside=True),
    }
    shown_keys = {key for row in evidence.rows for key, value in _cells(evidence, row).items() if value is not None}
    repeated = any(row.replicate_of is not None for row in evidence.rows)
    wanted = [key for key in titles if key in shown_keys and key not in evidence.objectives]
    return [titles[key] for key in wanted if key != "seeds" or repeated]


def _cells(evidence: Evidence, row: Row) -> dict[str, Cell]:
    whole = {key: _whole(row.details.get(key)) for key in ("parameters", "state_bytes")}
    return {
        "trial": row.number,
        "name": row.name,
        "origin": _origin(row),
        "outcome": row.outcome.value if row.outcome else "unfinished",
        "seeds": row.seeds,
        "learning_rate": row.learning_rate if RATE in row.choices else None,
        "tokens": row.tokens,
        **whole,
        **{name: row.values.get(name) for name in evidence.objectives},
    }


def _origin(row: Row) -> str:
    if row.is_baseline:
        return "baseline"
    if row.is_imported:
        return "imported"
    if row.replicate_of is not None:
        return "another seed"
    return "another rate" if row.leader is not None else row.sampler or row.origin


def _whole(value: Any) -> int | None:
    return None if value is None else round(float(value))


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
        "entrants" if evidence.entrants else "baselines": ", ".join(evidence.entrants or plan["baselines"]) or "none",
        "begun": str(plan["created"]),
        **{name: str(version) for name, version in plan["versions"].items()},
    }
    blocks: list[Block] = [Facts(facts), *_repeating(evidence, place), Code(str(plan.get("space", "")), "The space")]
    if config:
        blocks.append(Code(_yaml(config), "The configuration"))
    data = {name: str(task["data_hash"]) for name, task in plan.get("tasks", {}).items()}
    blocks.append(Facts({f"data of {name}": digest[:16] for name, digest in data.items()}))
    return Section("What was asked", blocks)


def _repeating(evidence: Evidence, place: str) -> list[Block]:
    """The commands behind the page, and which file holds the numbers of each part."""
    place = quote(place)
    commands = [f"archsearch study run {place}      # go on, or begin again from its configuration, below"]
    if not evidence.entrants:
        commands.append(f"archsearch study finals {place}   # fresh seeds, verdicts")
        commands.append(f"archsearch study aa {place}       # how far verdicts can be trusted here")
    commands.append(f"archsearch study report {place}   # every table and figure of this page again")
    text = (
        "Every figure is drawn by the last command from the files in the study's directory; the numbers lie beside "
        "this page: each table as NAME.csv and NAME.json, curves in trials/*/metrics-*.jsonl."
    )
    return [Code("\n".join(commands)), Text(text, quiet=True)]


def _yaml(config: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(config), sort_keys=False))
