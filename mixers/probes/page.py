"""A probe as a page: a section a quantity, with what it means, its plots and a table of its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archsearch.lowering.display import equation
from archsearch.mixers.probes.probe import LayerProbe
from archsearch.mixers.probes.quantities import Curve, Name, Quantity
from archsearch.mixers.probes.report import Probed
from archsearch.mixers.probes.wording import PERCENT, STORIES, Panel, Story
from archsearch.report.page import Block, Code, Equation, Facts, Figure, Page, Section, Text, Tiles
from archsearch.report.plots import Line, plot
from archsearch.report.tables import Cell, Column, Table

LAYERS = 6
"""Drawn in one plot; more are thinned out evenly, the first and the last kept."""
EVENTS = 24
"""Followed tokens that the page tells of, those that lost most."""


def build_page(probed: Probed) -> Page:
    """The page."""
    sections = [_head(probed), *(_section(probed, name, STORIES[name]) for name in Name if _quantities(probed, name))]
    if left_out := probed.left_out():
        text = "Quantities that this rule has no part for."
        facts = Facts({STORIES[Name(name)].title: reason for name, reason in left_out.items()})
        sections.append(Section("Left out", [Text(text, quiet=True), facts]))
    return Page(f"What {probed.rule.name} remembers", f"{probed.source}, reading {probed.text}", sections)


def _head(probed: Probed) -> Section:
    numbers = ", ".join(str(layer.index) for layer in probed.layers)
    facts = {
        "sequences": f"{len(probed.tokens)} of {len(probed.tokens[0])} tokens",
        "layers of the rule": f"{len(probed.layers)}: {'number' if len(probed.layers) == 1 else 'numbers'} {numbers}",
        "heads": str(len(next(iter(probed.layers[0].quantities[0].figures.values())))),
        "rule hash": probed.rule.hash[:16],
    }
    said = (
        "All numbers are from the token loop in the state's precision, on the same tokens for every layer. "
        "Tables and plots show means over heads; probe.json holds every head."
    )
    blocks: list[Block] = [Tiles(_tiles(probed)), Equation(equation(probed.rule).splitlines()), Facts(facts)]
    return Section("The model", [*blocks, Code(str(probed.rule), "The rule as code"), Text(said, quiet=True)])


def _tiles(probed: Probed) -> list[tuple[str, str]]:
    """The first figure that each story calls its headline, averaged over layers, rows and heads."""
    tiles: list[tuple[str, str]] = []
    for name, story in STORIES.items():
        values = [value for each in _quantities(probed, name) for value in each.figures.get(story.headline, ())]
        shown = [value for value in values if value is not None]
        if shown and story.headline:
            average = sum(shown) / len(shown)
            text = f"{100 * average:.1f} %" if story.headline in PERCENT else f"{average:.3g}"
            tiles.append((text, story.tile))
    return tiles


def _section(probed: Probed, name: Name, story: Story) -> Section:
    blocks: list[Block] = [Text(story.meaning)]
    blocks += [figure for panel in story.panels for figure in _figures(probed, name, panel)]
    blocks.append(_table(probed, name))
    if any(each.events for each in _quantities(probed, name)):
        blocks += [Text("Followed tokens that lost most to one step of one later token.", quiet=True), _events(probed)]
    return Section(story.title, blocks)


def _figures(probed: Probed, name: Name, panel: Panel) -> list[Figure]:
    """One drawing for each row or pair of addresses, a line a layer and curve."""
    found: list[Figure] = []
    for of in dict.fromkeys(each.of for each in _quantities(probed, name)):
        lines = _lines(probed, name, of, panel)
        if any(len(line.points) > 1 for line in lines):
            title = f"{of}: {panel.caption}" if of else panel.caption
            title += "; numbers are layers" if len(panel.curves) > 1 else ""
            drawing = plot(panel.x, panel.y, lines=[*lines, *_references(panel, lines)], summary=title)
            found.append(Figure(drawing, title))
    return found


def _lines(probed: Probed, name: Name, of: str, panel: Panel) -> list[Line]:
    layers = _thinned([layer for layer in probed.layers if any(each.of == of for each in layer.of(name))])
    lines: list[Line] = []
    for place, layer in enumerate(layers):
        quantity = next(each for each in layer.of(name) if each.of == of)
        for number, key in enumerate(panel.curves):
            if key not in quantity.curves:
                continue
            single = len(panel.curves) == 1
            tone = f"tone{place % 8}" if single else f"tone{number % 8}"
            label = f"layer {layer.index}" if single else f"{layer.index} {key.replace('_', ' ')}"
            quiet = not single and len(layers) * len(panel.curves) > 2 * LAYERS and place > 0
            points = _points(quantity.curves[key], panel)
            lines.append(Line(points, tone, "" if quiet else label, label, stepped=panel.stepped))
    return lines


def _points(curve: Curve, panel: Panel) -> list[tuple[float, float]]:
    """Means over heads; places without a number, or that a logarithm does not show, are left out."""
    points: list[tuple[float, float]] = []
    for at, x in enumerate(curve.x):
        values = [value for head in curve.heads if (value := head[at]) is not None]
        if not values:
            continue
        y = sum(values) / len(values)
        if (y > 0 or not panel.y.log) and (x > 0 or not panel.x.log):
            points.append((x, y))
    return points


def _references(panel: Panel, lines: Sequence[Line]) -> list[Line]:
    ends = [x for line in lines for x, _ in line.points]
    return [Line([(min(ends), y), (max(ends), y)], "muted", label, dashed=True) for y, label in panel.references]


def _table(probed: Probed, name: Name) -> Table:
    """A row for each layer, and row or pair of addresses; figures are means over heads."""
    found = [(layer.index, each) for layer in probed.layers for each in layer.of(name)]
    keys = dict.fromkeys(key for _, each in found for key in each.figures)
    named = any(each.of for _, each in found)
    columns = [Column("layer", "layer"), *([Column("of", "of")] if named else [])]
    columns += [Column(key, key.replace("_", " "), percent=key in PERCENT) for key in keys]
    rows: list[Mapping[str, Cell]] = [
        {"layer": index, "of": each.of, **{key: _over_heads(each, key) for key in keys}} for index, each in found
    ]
    return Table(name.value, columns, rows, {})


def _over_heads(quantity: Quantity, key: str) -> float | None:
    values = [value for value in quantity.figures.get(key, ()) if value is not None]
    return sum(values) / len(values) if values else None


def _events(probed: Probed) -> Table:
    every = [
        (layer.index, each.of, event) for layer in probed.layers for each in layer.quantities for event in each.events
    ]
    every.sort(key=lambda told: -float(told[2]["share"]))
    columns = [
        Column("layer", "layer"),
        Column("head", "head"),
        Column("written", "written at", wide=True),
        Column("taken_by", "taken by", wide=True),
        Column("cause", "through"),
        Column("share", "of what was there", percent=True),
        Column("gone", "below a tenth after", unit="tokens"),
    ]
    rows: list[Mapping[str, Cell]] = [
        {
            "layer": layer,
            "head": event["head"],
            "written": probed.place(event["sequence"], event["written"]),
            "taken_by": probed.place(event["sequence"], event["taken_by"]),
            "cause": event["cause"],
            "share": event["share"],
            "gone": None if event["lost"] is None else event["lost"] - event["written"],
        }
        for layer, _, event in every[:EVENTS]
    ]
    return Table("events", columns, rows, {})


def _quantities(probed: Probed, name: Name) -> list[Quantity]:
    return [each for layer in probed.layers for each in layer.of(name)]


def _thinned(layers: Sequence[LayerProbe]) -> list[LayerProbe]:
    if len(layers) <= LAYERS:
        return list(layers)
    return [layers[round(place * (len(layers) - 1) / (LAYERS - 1))] for place in range(LAYERS)]
