"""Plots as SVG: points and lines between two axes, labelled where they stand, coloured by the page's style."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from archsearch.report.labels import Box, placed
from archsearch.report.scales import Axis, Scale, compact, fitted
from archsearch.report.words import shortened

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 18, 48
LABEL_HEIGHT = 15
MOST_LABELS = (HEIGHT - TOP - BOTTOM) // LABEL_HEIGHT
LONGEST_LABEL, LONGEST_NAME = 18, 36
"""Characters of a label that fit beside the drawing, and of a mark's name inside it."""

COLOURS = 8
"""Tones of the page beside `winner` and `muted`."""


def tone(index: int) -> str:
    """The CSS class of a line or mark by its place among others; they repeat after `COLOURS`."""
    return f"tone{index % COLOURS}"


@dataclass(frozen=True, slots=True)
class Mark:
    """A point. tone: a CSS class of the page (`winner`, `tone0` .. `tone7`, `muted`). label: beside it, if any; hint:
    on hover.

    hollow: drawn as a ring. across, up: (low, high) of an interval of x and of y, drawn as a thin cross, if any.
    """

    x: float
    y: float
    tone: str
    label: str = ""
    hint: str = ""
    hollow: bool = False
    across: tuple[float, float] | None = None
    up: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """Joined points. label: at its right end, if any. stepped: drawn as stairs. dashed: a reference."""

    points: Sequence[tuple[float, float]]
    tone: str
    label: str = ""
    hint: str = ""
    stepped: bool = False
    dashed: bool = False


def plot(x: Axis, y: Axis, *, lines: Sequence[Line] = (), marks: Sequence[Mark] = (), summary: str) -> str:
    """A drawing of lines below marks. summary: what it shows, for those who do not see it."""
    xs = [p[0] for line in lines for p in line.points] + [x for m in marks for x in (m.x, *(m.across or ()))]
    ys = [p[1] for line in lines for p in line.points] + [y for m in marks for y in (m.y, *(m.up or ()))]
    across = fitted(x, xs, LEFT, WIDTH - RIGHT)
    up = fitted(y, ys, HEIGHT - BOTTOM, TOP)
    parts = [_grid(across, up)]
    parts += [_line(line, across, up) for line in lines]
    parts += [_mark(mark, across, up) for mark in marks]
    parts += _labels(lines, marks, across, up)
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(summary)}">'
        + "".join(parts)
        + "</svg>"
    )


def _grid(across: Scale, up: Scale) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts: list[str] = []
    for tick in up.ticks():
        at = up.place(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{up.label(tick)}</text>')
    for tick in across.ticks():
        at = across.place(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{across.label(tick)}</text>'
        )
    across_label, up_label = escape(across.axis.label), escape(up.axis.label)
    below = f'x="{(LEFT + right) / 2}" y="{HEIGHT - 8}"'
    beside = f'transform="translate(14 {(TOP + bottom) / 2}) rotate(-90)"'
    parts.append(f'<text class="axis" {below} text-anchor="middle">{across_label}</text>')
    parts.append(f'<text class="axis" {beside} text-anchor="middle">{up_label}</text>')
    return "".join(parts)


def _line(line: Line, across: Scale, up: Scale) -> str:
    places = [(across.place(a), up.place(b)) for a, b in line.points]
    if not places:
        return ""
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
    for a, b in places[1:]:
        path += f"H{a:.1f}V{b:.1f}" if line.stepped else f"L{a:.1f} {b:.1f}"
    style = "line dashed" if line.dashed else "line"
    return f'<path class="{style} {line.tone}" d="{path}"><title>{escape(line.hint or line.label)}</title></path>'


def _mark(mark: Mark, across: Scale, up: Scale) -> str:
    at_x, at_y = across.place(mark.x), up.place(mark.y)
    style = "mark hollow" if mark.hollow else "mark"
    radius = 6 if mark.tone == "winner" else 4.5
    hint = mark.hint or f"{mark.label} ({compact(mark.x)}, {compact(mark.y)})"
    place = f'cx="{at_x:.1f}" cy="{at_y:.1f}" r="{radius}"'
    return (
        _cross(mark, across, up) + f'<circle class="{style} {mark.tone}" {place}><title>{escape(hint)}</title></circle>'
    )


def _cross(mark: Mark, across: Scale, up: Scale) -> str:
    """The intervals of a mark."""
    at_x, at_y = across.place(mark.x), up.place(mark.y)
    drawn = ""
    if mark.across is not None:
        low, high = map(across.inside, mark.across)
        drawn += f'<path class="line whisker {mark.tone}" d="M{low:.1f} {at_y:.1f}H{high:.1f}"/>'
    if mark.up is not None:
        low, high = map(up.inside, mark.up)
        drawn += f'<path class="line whisker {mark.tone}" d="M{at_x:.1f} {low:.1f}V{high:.1f}"/>'
    return drawn


def _labels(lines: Sequence[Line], marks: Sequence[Mark], across: Scale, up: Scale) -> list[str]:
    """The labels of lines at the right edge, moved apart, of the first ones where not all fit; of references on them,
    and of marks beside them.
    """
    drawn = [line for line in lines if line.label and line.points]
    solid = [line for line in drawn if not line.dashed][:MOST_LABELS]
    labelled = sorted(solid, key=lambda line: up.place(line.points[-1][1]))
    ends = spread([up.place(line.points[-1][1]) for line in labelled])
    parts = [
        _text(WIDTH - RIGHT + 8, end + 4, line.tone, shortened(line.label, LONGEST_LABEL))
        for end, line in zip(ends, labelled, strict=True)
    ]
    dashed = sorted((line for line in drawn if line.dashed), key=lambda line: up.place(line.points[-1][1]))
    heights = spread([up.place(line.points[-1][1]) - 5 for line in dashed])
    parts += [
        _text(across.place(line.points[-1][0]) - 4, height, f"{line.tone} within", line.label)
        for height, line in zip(heights, dashed, strict=True)
    ]
    return [*parts, *_mark_labels(marks, across, up)]


def _mark_labels(marks: Sequence[Mark], across: Scale, up: Scale) -> list[str]:
    """The labels of marks, off each other and off the marks and their intervals."""
    labelled = sorted((mark for mark in marks if mark.label), key=lambda mark: up.place(mark.y))
    names = [shortened(mark.label, LONGEST_NAME) for mark in labelled]
    wanted = [(across.place(m.x), up.place(m.y), name) for m, name in zip(labelled, names, strict=True)]
    drawn = [box for mark in marks for box in _covered(mark, across, up)]
    spots = placed(wanted, drawn, Box(LEFT, TOP, WIDTH, HEIGHT - BOTTOM))
    return [
        _text(spot.x, spot.y, f"{mark.tone} ends" if spot.ends_here else mark.tone, name)
        for spot, mark, name in zip(spots, labelled, names, strict=True)
    ]


def _covered(mark: Mark, across: Scale, up: Scale) -> list[Box]:
    """What a mark and its intervals cover."""
    at_x, at_y = across.place(mark.x), up.place(mark.y)
    boxes = [Box(at_x - 5, at_y - 5, at_x + 5, at_y + 5)]
    if mark.across is not None:
        low, high = map(across.inside, mark.across)
        boxes.append(Box(low, at_y - 1, high, at_y + 1))
    if mark.up is not None:
        high, low = map(up.inside, mark.up)
        boxes.append(Box(at_x - 1, low, at_x + 1, high))
    return boxes


def spread(places: Sequence[float]) -> list[float]:
    """Rising places moved apart until labels fit between them, each as little as its place below the one before
    allows.
    """
    moved: list[float] = []
    for place in places:
        moved.append(place if not moved else max(place, moved[-1] + LABEL_HEIGHT))
    overflow = moved[-1] - (HEIGHT - BOTTOM) if moved else 0.0
    if overflow > 0:
        limit = HEIGHT - BOTTOM
        for index in reversed(range(len(moved))):
            moved[index] = min(moved[index], limit)
            limit = moved[index] - LABEL_HEIGHT
    return moved


def _text(x: float, y: float, tone: str, text: str) -> str:
    return f'<text class="label {tone}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
