"""Pages, tables and plots hold what they were given, whole, escaped and without the network."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from itertools import combinations, pairwise

import pytest

from archsearch.report.labels import Box, placed
from archsearch.report.page import Code, Equation, Facts, Figure, Page, Section, Text, Tiles
from archsearch.report.plots import HEIGHT, LABEL_HEIGHT, MOST_LABELS, Line, Mark, plot, spread
from archsearch.report.scales import Axis, compact, fitted, linear_ticks, log_ticks
from archsearch.report.tables import Column, Table, shown
from archsearch.report.words import shortened

NASTY = '<b>&"x"</b>'
VOID = {"meta", "link", "br", "img"}


class Balance(HTMLParser):
    """Fails on a tag that is closed out of order; keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(html: str) -> Balance:
    balance = Balance()
    balance.feed(html)
    balance.close()
    assert balance.open == []
    return balance


def table() -> Table:
    columns = [
        Column("name", "name", wide=True),
        Column("recall", "recall", percent=True),
        Column("size", "size", bar=True),
    ]
    rows = [{"name": NASTY, "recall": 0.98765, "size": 123456}, {"name": "plain", "recall": None, "size": 1}]
    return Table("scores", columns, rows, {0: "winner"})


def page() -> Page:
    drawing = plot(Axis("a"), Axis("b"), marks=[Mark(1.0, 2.0, "winner", NASTY)], summary=NASTY)
    blocks = [Text(NASTY), Equation([NASTY], NASTY), Code(NASTY, NASTY), Facts({NASTY: NASTY}), Tiles([(NASTY, NASTY)])]
    return Page(NASTY, NASTY, [Section(NASTY, [*blocks, Figure(drawing, NASTY), table()])])


def test_a_page_is_balanced_and_escapes_what_it_is_given() -> None:
    html = page().html()
    assert html.startswith("<!doctype html>") and "<b>" not in html
    assert parsed(html).text.count(NASTY) >= 12


def test_a_page_refers_to_nothing_outside_itself() -> None:
    html = page().html()
    names = {name for name, _ in parsed(html).attributes}
    assert not names & {"src", "href", "srcset", "data"}
    assert "url(" not in html and "@import" not in html and "http" not in html


def test_a_page_knows_its_tables() -> None:
    assert [t.name for t in page().tables] == ["scores"]


def test_a_table_keeps_full_precision_in_its_files() -> None:
    rows = list(csv.DictReader(io.StringIO(table().csv())))
    assert rows[0] == {"name": NASTY, "recall": "0.98765", "size": "123456"} and rows[1]["recall"] == ""
    assert json.loads(table().json()) == [dict(row) for row in table().rows]


def test_a_table_marks_its_rows_and_numbers() -> None:
    html = table().html()
    assert '<tr class="winner">' in html and 'class="number">98.8 %' in html and "--share:1.000" in html
    parsed(html)


@pytest.mark.parametrize(
    ("value", "column", "text"),
    [
        (None, Column("x", "x"), "\N{EN DASH}"),
        (0.5, Column("x", "x", percent=True), "50.0 %"),
        (1234567, Column("x", "x"), "1\u202f234\u202f567"),
        (0.0031622, Column("x", "x"), "0.003162"),
        (3.14159, Column("x", "x", digits=2), "3.14"),
        (float("inf"), Column("x", "x"), "inf"),
        (True, Column("x", "x"), "True"),
        ("word", Column("x", "x"), "word"),
    ],
)
def test_cells_are_written_by_their_column(value: float | str | bool | None, column: Column, text: str) -> None:
    assert shown(value, column) == text


def test_a_plot_is_well_formed_and_keeps_everything_inside() -> None:
    lines = [
        Line([(0.0, 1.0), (5.0, 2.0)], "tone0", "line"),
        Line([(0.0, 1.5), (5.0, 1.5)], "muted", "floor", dashed=True),
    ]
    marks = [Mark(x, x / 2, "tone1", f"mark {x}") for x in (1.0, 2.0, 2.01, 4.0)]
    svg = ElementTree.fromstring(plot(Axis("x"), Axis("y", percent=True), lines=lines, marks=marks, summary="s"))
    width, height = map(float, svg.attrib["viewBox"].split()[2:])
    circles = [element for element in svg.iter() if element.tag == "circle"]
    assert len(circles) == 4
    assert all(0 <= float(c.attrib["cx"]) <= width and 0 <= float(c.attrib["cy"]) <= height for c in circles)
    texts = [element.text for element in svg.iter() if element.tag == "text"]
    assert {"line", "floor", "x", "y", "mark 2.01"} <= set(texts)


@pytest.mark.parametrize("values", [[], [3.0], [3.0, 3.0], [0.0], [-1.0, 1.0], [float("nan"), 2.0]])
def test_a_scale_exists_for_any_values(values: list[float]) -> None:
    scale = fitted(Axis("x"), values, 0.0, 100.0)
    assert scale.low < scale.high and scale.ticks()
    assert all(0 <= scale.place(v) <= 100 for v in values if v == v)


@pytest.mark.parametrize("values", [[], [0.001], [0.001, 1000.0], [2.0, 3.0], [-1.0, 0.0, 5.0]])
def test_a_logarithmic_scale_shows_the_positive_values(values: list[float]) -> None:
    scale = fitted(Axis("x", log=True), values, 0.0, 100.0)
    assert 0 < scale.low < scale.high and len(scale.ticks()) >= 2
    assert all(0 <= scale.place(v) <= 100 for v in values if v > 0)


def test_ticks_are_round_and_inside() -> None:
    assert linear_ticks(0.0, 1.0) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert linear_ticks(2.7, 4.9) == pytest.approx([3.0, 3.5, 4.0, 4.5])
    assert log_ticks(1.0, 100.0) == pytest.approx([1, 2, 5, 10, 20, 50, 100])
    assert log_ticks(1e-3, 1e3) == pytest.approx([1e-3, 1e-2, 1e-1, 1, 10, 100, 1000])


def test_labels_do_not_overlap() -> None:
    places = spread([10.0, 11.0, 12.0, 100.0])
    assert all(b - a >= LABEL_HEIGHT for a, b in pairwise(places))
    low = spread([340.0, 345.0, 350.0])
    assert all(b - a >= LABEL_HEIGHT - 1e-9 for a, b in pairwise(low)) and low[-1] <= 352


def test_labels_of_points_keep_off_each_other_the_marks_and_the_edge() -> None:
    inside = Box(64, 18, 760, 352)
    points = [(300.0, 100.0), (302.0, 102.0), (310.0, 101.0), (740.0, 100.0), (66.0, 350.0)]
    drawn = [Box(x - 5, y - 5, x + 5, y + 5) for x, y in points] + [Box(64, 99, 760, 101)]
    name = "a label of thirty characters.."
    boxes = [spot.box(name) for spot in placed([(x, y, name) for x, y in points], drawn, inside)]
    assert all(a.shared(b) == 0 for a, b in combinations(boxes, 2)), "not on each other"
    assert all(box.shared(each) == 0 for box in boxes for each in drawn), "nor on marks and intervals"
    assert all(box.shared(inside) == pytest.approx(box.area) for box in boxes)


def test_a_lonely_label_stands_right_of_its_point() -> None:
    (spot,) = placed([(100.0, 100.0, "kda")], [Box(95, 95, 105, 105)], Box(64, 18, 760, 352))
    assert (spot.x, spot.y, spot.ends_here) == (109.0, 104.0, False)


def test_what_is_aside_is_folded_away_beside_the_names() -> None:
    columns = [Column("n", "#"), Column("name", "name", wide=True), Column("x", "x"), Column("y", "y", aside=True)]
    table = Table("t", columns, [{"n": 1, "name": "a", "x": 2, "y": 3}], {0: "winner"})
    first, folded = table.html().split("<details><summary>More: y</summary>")
    assert re.findall(r"<th\b[^>]*>(.*?)</th>", first) == ["#", "name", "x"]
    assert re.findall(r"<th\b[^>]*>(.*?)</th>", folded) == ["#", "name", "y"]
    assert first.count('<tr class="winner">') == folded.count('<tr class="winner">') == 1
    assert "y" in table.csv().splitlines()[0]


def test_differences_of_shares_are_points() -> None:
    assert shown(-0.0039, Column("d", "d", digits=2, points=True)) == "-0.39"
    assert fitted(Axis("x", points=True), [0.0, 0.02], 0, 1).label(0.02) == "2"


def test_labels_that_do_not_fit_beside_a_drawing_are_left_out() -> None:
    lines = [Line([(0.0, 0.0), (1.0, float(i))], "tone0", f"line {i}.") for i in range(40)]
    drawing = plot(Axis("x"), Axis("y"), lines=lines, summary="many lines")
    heights = [float(y) for y in re.findall(r'<text class="label [^"]*" x="[^"]*" y="([^"]*)"', drawing)]
    assert len(heights) == MOST_LABELS and min(heights) > 0 and max(heights) < HEIGHT


def test_ticks_are_written_as_they_are() -> None:
    scale = fitted(Axis("bits per byte"), [2.22, 2.31], 0, 1)
    assert [scale.label(tick) for tick in scale.ticks()] == ["2.22", "2.24", "2.26", "2.28", "2.3"]
    scale = fitted(Axis("bits per byte"), [2.22, 2.315], 0, 1)
    assert [scale.label(tick) for tick in scale.ticks()] == ["2.225", "2.25", "2.275", "2.3"]


def test_a_long_name_keeps_its_end() -> None:
    assert shortened("short (trial 1)", 36) == "short (trial 1)"
    said = shortened("channel decay, learned erase, learned residual (trial 15)", 36)
    assert len(said) == 36 and said.startswith("channel decay") and said.endswith("l (trial 15)")


@pytest.mark.parametrize(("value", "text"), [(1500, "1.5k"), (2e6, "2M"), (0.00123, "0.00123"), (12.0, "12")])
def test_numbers_are_compact(value: float, text: str) -> None:
    assert compact(value) == text
