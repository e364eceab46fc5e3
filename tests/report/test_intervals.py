"""Intervals under each other: everything inside the drawing, names whole or cut in the middle."""

import math
import xml.etree.ElementTree as ElementTree

from archsearch.report.intervals import LONGEST_NAME, Bar, forest
from archsearch.report.plots import Mark, plot
from archsearch.report.scales import Axis
from archsearch.report.tables import Column, Table


def drawn(svg: str, tag: str) -> list[ElementTree.Element]:
    return [element for element in ElementTree.fromstring(svg).iter() if element.tag == tag]


def test_every_bar_lies_inside_and_is_named() -> None:
    bars = [
        Bar("<a>", 1.0, -math.inf, math.inf, "muted", "undecided"),
        Bar("b", -2.0, -3.0, -1.0, "tone3", "loss", ghost=4.0),
        Bar("x" * 70 + " (trial 123)", 0.1, 0.0, 0.2, "tone1", "win"),
    ]
    svg = forest(Axis("difference"), bars, band=0.5, summary="s")
    width, height = map(float, ElementTree.fromstring(svg).attrib["viewBox"].split()[2:])
    circles = drawn(svg, "circle")
    assert len(circles) == 4 and all(0 <= float(c.attrib["cx"]) <= width for c in circles)
    lines = [line for line in drawn(svg, "line") if "line" in line.attrib["class"].split()]
    assert len(lines) == 3 and all(float(line.attrib["x1"]) < float(line.attrib["x2"]) for line in lines)
    assert all(0 <= float(line.attrib["y1"]) <= height for line in lines)
    texts = [element.text or "" for element in drawn(svg, "text")]
    assert {"<a>", "b", "undecided", "loss", "win", "difference"} <= set(texts)
    (cut,) = [text for text in texts if text.startswith("xx")]
    assert len(cut) == LONGEST_NAME and cut.endswith(" (trial 123)")
    assert len(drawn(svg, "rect")) == 1


def test_without_an_origin_nothing_is_drawn_at_zero() -> None:
    svg = forest(Axis("value"), [Bar("a", 105.0, 104.0, 106.0, "ink")], origin=False, summary="s")
    assert 'class="origin"' not in svg and "rect" not in svg
    circle = drawn(svg, "circle")[0]
    assert abs(float(circle.attrib["cx"]) - (330 + 860 - 110) / 2) < 1


def test_a_mark_may_have_intervals_both_ways() -> None:
    marks = [Mark(1.0, 2.0, "tone0", "m", across=(0.5, 1.5), up=(1.0, 9.0)), Mark(1.0, 3.0, "tone1")]
    svg = plot(Axis("x"), Axis("y"), marks=marks, summary="s")
    whiskers = [path.attrib["d"] for path in drawn(svg, "path") if "whisker" in path.attrib["class"]]
    assert len(whiskers) == 2 and "H" in whiskers[0] and "V" in whiskers[1]


def test_a_quiet_column_is_grey_and_keeps_its_numbers() -> None:
    table = Table("t", [Column("a", "a", quiet=True), Column("b", "b")], [{"a": 1.5, "b": 2}], {})
    assert '<td class="number quiet">1.5</td>' in table.html() and '<td class="number">2</td>' in table.html()
