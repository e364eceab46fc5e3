"""Findings as sections of a page: importances, learning rates, rungs, cost, and the equations of who took part."""

from collections.abc import Mapping, Sequence

from archsearch.dsl import parse_rule
from archsearch.lowering.display import equation
from archsearch.report.page import Block, Equation, Figure, Section, Text
from archsearch.report.plots import COLOURS, Line, Mark, plot, tone
from archsearch.report.scales import Axis
from archsearch.report.tables import Cell, Column, Table
from archsearch.report.words import counted
from archsearch.studies.evidence.findings import (
    WEAK,
    Cost,
    RateCurve,
    RungWorth,
    costs,
    has_grid,
    importances,
    rate_curves,
    rung_worth,
)
from archsearch.studies.evidence.rows import Evidence, Row
from archsearch.studies.evidence.wording import FAR, is_share, shown, spoken
from archsearch.studies.files.decisions import Decision
from archsearch.studies.tasks.direction import Direction

SHOWN_RULES = 8

SHOWN_EDGES = 6
"""Structures that a warning names."""


def importance_section(evidence: Evidence) -> list[Section]:
    """One table over all objectives."""
    found = {name: importances(evidence, name) for name in evidence.objectives}
    found = {name: shares for name, shares in found.items() if shares}
    if not found:
        return []
    first = next(iter(found.values()))
    paths = sorted({path for shares in found.values() for path in shares}, key=lambda path: -first.get(path, 0.0))
    columns = [Column("choice", "choice", wide=True)]
    columns += [Column(name, spoken(name), digits=1, percent=True, bar=True) for name in found]
    rows: list[dict[str, Cell]] = [
        {"choice": path, **{name: shares.get(path) for name, shares in found.items()}} for path in paths
    ]
    text = (
        "How much each choice has to do with being among the better complete trials (PED-ANOVA), as shares of what all "
        "choices explain together. It describes these trials; few trials make it rough. A choice that only some of "
        "them made is left out."
    )
    return [Section("What mattered", [Text(text, quiet=True), Table("importances", columns, rows, {})])]


def rate_section(evidence: Evidence) -> list[Section]:
    """Of a search with a grid of rates each objective that they change, a line a structure, with a warning for each
    best rate at an edge. Without a grid a structure may have met several rates by chance, which shows no curve.
    """
    curves = rate_curves(evidence)
    if not curves or not has_grid(evidence):
        return []
    drawn = [c for c in curves if c.is_baseline] + [c for c in curves if not c.is_baseline]
    moved = [n for n in evidence.objectives if any(len({value for _, value in c.points[n]}) > 1 for c in curves)]
    figures = [_rate_figure(drawn[:COLOURS], name) for name in moved]
    table = _rate_table(curves, evidence.objectives)
    return [Section("Learning rates", [*_edge_warning(curves), *_price_warning(curves), *figures, table])]


def _edge_warning(curves: Sequence[RateCurve]) -> list[Block]:
    edges = [curve for curve in curves if curve.at_edge]
    if not edges:
        return []
    said = "; ".join(f"{curve.name}: {curve.best:.3g}, the {curve.at_edge}" for curve in edges[:SHOWN_EDGES])
    more = f" and {len(edges) - SHOWN_EDGES} more" if len(edges) > SHOWN_EDGES else ""
    text = (
        f"Of {counted(len(curves), 'structure')} {len(edges)} were best at an end of the rates tried, so better ones "
        f"may lie outside: {said}{more}. Widen learning_rates."
    )
    return [Text(text, warning=True)]


def _price_warning(curves: Sequence[RateCurve]) -> list[Block]:
    """Structures that are judged at a rate at which a share is far from what it is at another: ranks see no sizes."""
    said: list[str] = []
    for curve in curves:
        for name in filter(is_share, curve.points):
            at, best = max(curve.points[name], key=lambda point: point[1])
            if best - curve.at_best(name) > FAR:
                found = f"{shown(name, curve.at_best(name))} at {curve.best:.3g}, {shown(name, best)} at {at:.3g}"
                said.append(f"{curve.name}: {spoken(name)} {found}")
    if not said:
        return []
    more = f" and {len(said) - SHOWN_EDGES} more" if len(said) > SHOWN_EDGES else ""
    text = (
        "The best mean rank over all objectives chose a rate at which one of them is far below what it was at another, "
        f"on one seed: {'; '.join(said[:SHOWN_EDGES])}{more}. They are judged at it, in finals too."
    )
    return [Text(text, warning=True)]


def _rate_figure(curves: Sequence[RateCurve], name: str) -> Figure:
    lines = [Line(curve.points[name], tone(i), curve.name) for i, curve in enumerate(curves)]
    marks = [
        Mark(rate, value, tone(i), hint=f"{curve.name}: {value:.4g} at {rate:.3g}", hollow=rate != curve.best)
        for i, curve in enumerate(curves)
        for rate, value in curve.points[name]
    ]
    drawing = plot(
        Axis("learning rate", log=True),
        Axis(spoken(name), percent=is_share(name)),
        lines=lines,
        marks=marks,
        summary=f"{name} of each structure by learning rate",
    )
    caption = (
        f"{spoken(name).capitalize()} of a structure at the rates that ran to the end; filled: the rate at which it is "
        "judged, the best in mean rank over all objectives. One seed each."
    )
    return Figure(drawing, caption)


def _rate_table(curves: Sequence[RateCurve], objectives: Mapping[str, Direction]) -> Table:
    columns = [
        Column("name", "structure", wide=True),
        Column("rates", "rates run to the end"),
        Column("best_rate", "best rate", unit="peak"),
        *(Column(n, spoken(n), digits=1 if is_share(n) else 3, percent=is_share(n)) for n in objectives),
        Column("edge", "at an end of the grid"),
    ]
    rows: list[dict[str, Cell]] = [
        {
            "name": curve.name,
            "rates": len(next(iter(curve.points.values()))),
            "best_rate": curve.best,
            **{name: curve.at_best(name) for name in objectives},
            "edge": curve.at_edge or "no",
        }
        for curve in curves
    ]
    return Table("learning_rates", columns, rows, {i: "baseline" for i, c in enumerate(curves) if c.is_baseline})


def rung_section(evidence: Evidence, decisions: Sequence[Decision]) -> list[Section]:
    """What happened at each rung, and what the free passes say of its order."""
    worth = rung_worth(evidence, decisions)
    if not worth:
        return []
    columns = [
        Column("rung", "rung"),
        Column("tokens", "tokens"),
        Column("arrived", "arrived"),
        Column("stopped", "stopped"),
        Column("survived", "went on", digits=0, percent=True, bar=True),
        *(_best_column(name) for name in evidence.objectives),
        Column("passes", "free passes"),
        Column("correlation", "rank correlation with the end", digits=2),
        Column("wronged", "good ones it would have stopped"),
    ]
    rows = [_rung_row(each, [d for d in decisions if d.rung == each.rung], evidence) for each in worth]
    text = (
        "At a rung a trial is compared with all that came before it and goes on if it is among the best; baselines and "
        "free passes always go on. Free passes, which ran to the end whatever their rank, show what a rung is worth."
    )
    blocks: list[Block] = [Text(text, quiet=True)]
    weak = [each for each in worth if each.correlation is not None and each.correlation < WEAK]
    blocks += [Text(_weak_words(each), warning=True) for each in weak]
    return [Section("Rungs", [*blocks, Table("rungs", columns, rows, {})])]


def _weak_words(worth: RungWorth) -> str:
    return (
        f"The order at {worth.tokens:,} tokens agrees with the order at the end by {worth.correlation:.2f} only, over "
        f"{worth.passes} free passes: this rung is too early, or too few trials came by. Raise its tokens (fewer rungs "
        "or a smaller eta)."
    )


def _best_column(name: str) -> Column:
    share = is_share(name)
    return Column(f"best_{name}", f"best {spoken(name)}", digits=1 if share else 3, percent=share)


def _rung_row(worth: RungWorth, here: Sequence[Decision], evidence: Evidence) -> dict[str, Cell]:
    best = {
        f"best_{name}": (max if way is Direction.MAXIMIZE else min)(d.values[name] for d in here)
        for name, way in evidence.objectives.items()
    }
    return {
        "rung": worth.rung,
        "tokens": worth.tokens,
        "arrived": worth.arrived,
        "stopped": worth.stopped,
        "survived": 1 - worth.stopped / worth.arrived,
        **best,
        "passes": worth.passes,
        "correlation": worth.correlation,
        "wronged": worth.wronged,
    }


def cost_section(evidence: Evidence) -> list[Section]:
    """Device time and tokens; money depends on who rents what, and is left out."""
    columns = [
        Column("what", "trials of", wide=True),
        Column("trials", "trials"),
        Column("seconds", "device time", digits=0, unit="s"),
        Column("hours", "", digits=2, unit="h"),
        Column("wall", "some trained", digits=0, unit="s"),
        Column("tokens", "tokens"),
        Column("rate", "tokens a second", digits=0),
        Column("devices", "on", wide=True),
    ]
    rows = [_cost_row(cost) for cost in costs(evidence)]
    text = (
        "Training time as each trial's own clock counted it, evaluation and compilation apart; where several trials "
        "share a device their times overlap, and the seconds during which some of them trained count (tokens a second "
        "are of these where they are known). Money is left out."
    )
    return [Section("Cost", [Text(text, quiet=True), Table("cost", columns, rows, {})])] if rows else []


def _cost_row(cost: Cost) -> dict[str, Cell]:
    return {
        "what": cost.what,
        "trials": cost.trials,
        "seconds": cost.seconds,
        "hours": cost.seconds / 3600,
        "wall": cost.wall,
        "tokens": cost.tokens,
        "rate": cost.tokens / (cost.wall or cost.seconds) if cost.seconds else None,
        "devices": cost.devices,
    }


def rules_section(rows: Sequence[Row], known: Mapping[str, str]) -> list[Section]:
    """The equation of each rule that took part, once. known: names of the zoo by hash."""
    blocks: list[Block] = []
    seen: set[str] = set()
    for row in rows:
        if row.rule_hash in seen or not row.rule:
            continue
        seen.add(row.rule_hash)
        rule = parse_rule(row.rule)
        name, zoo_name = row.entrant or row.name, known.get(rule.hash)
        of_the_zoo = f" It is {zoo_name} of the zoo." if zoo_name not in (None, name) else ""
        blocks.append(Equation(equation(rule).splitlines(), f"{name}.{of_the_zoo}"))
        if len(blocks) == SHOWN_RULES:
            break
    return [Section("The rules", blocks)] if blocks else []
