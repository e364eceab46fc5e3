"""Intervals under each other, as SVG: a row a name, its mean and interval, and what was thought before in grey."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from archsearch.report.scales import Axis, Scale, fitted
from archsearch.report.words import shortened

WIDTH, ROW = 860, 26
LEFT, RIGHT, TOP, BOTTOM = 330, 110, 14, 46
LONGEST_NAME = 48


@dataclass(frozen=True, slots=True)
class Bar:
    """A row. low, high: of the interval; infinite ends are drawn to the edge. tone: a CSS class of the page, as in
    plots. word: at the right, if any. ghost: an earlier value, drawn as a grey ring, if any. hint: on hover.
    """

    name: str
    mean: float
    low: float
    high: float
    tone: str
    word: str = ""
    ghost: float | None = None
    hint: str = ""


def forest(axis: Axis, bars: Sequence[Bar], *, band: float = 0.0, origin: bool = True, summary: str) -> str:
    """A drawing of `bars` under each other. band: shaded to both sides of 0. origin: whether 0 is marked.

    summary: what it shows, for those who do not see it.
    """
    bottom = TOP + ROW * len(bars)
    values = [x for bar in bars for x in (bar.mean, bar.low, bar.high, bar.ghost) if x is not None]
    wanted = [*values, *((-band, band) if origin else ())]
    across = fitted(axis, wanted, LEFT, WIDTH - RIGHT)
    parts = [_ground(across, bottom, band, origin=origin)]
    parts += [_row(bar, TOP + ROW * (i + 0.5), across) for i, bar in enumerate(bars)]
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {bottom + BOTTOM}" role="img" aria-label="{escape(summary)}">'
        + "".join(parts)
        + "</svg>"
    )


def _ground(across: Scale, bottom: float, band: float, *, origin: bool) -> str:
    parts: list[str] = []
    if origin and band > 0:
        left, right = across.place(-band), across.place(band)
        parts.append(
            f'<rect class="band" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{bottom - TOP}"/>'
        )
    for tick in across.ticks():
        at = across.place(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{across.label(tick)}</text>'
        )
    if origin:
        at = across.place(0.0)
        parts.append(f'<line class="origin" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    label = escape(across.axis.label)
    parts.append(f'<text class="axis" x="{middle}" y="{bottom + 36}" text-anchor="middle">{label}</text>')
    return "".join(parts)


def _row(bar: Bar, at: float, across: Scale) -> str:
    low, high = (across.inside(x) for x in (bar.low, bar.high))
    mean = across.place(bar.mean)
    name = escape(shortened(bar.name, LONGEST_NAME))
    hint = f"<title>{escape(bar.hint or bar.name)}</title>"
    ghost = ""
    if bar.ghost is not None:
        ghost = f'<circle class="mark hollow muted" cx="{across.place(bar.ghost):.1f}" cy="{at:.1f}" r="4.5"/>'
    return (
        f'<text class="row" x="{LEFT - 10}" y="{at + 4:.1f}" text-anchor="end">{name}{hint}</text>{ghost}'
        f'<line class="line {bar.tone}" x1="{low:.1f}" x2="{high:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<circle class="mark {bar.tone}" cx="{mean:.1f}" cy="{at:.1f}" r="4.5">{hint}</circle>'
        f'<text class="label {bar.tone}" x="{WIDTH - RIGHT + 8}" y="{at + 4:.1f}">{escape(bar.word)}</text>'
    )
