"""Where the labels of points stand: beside their points, off each other, off what is drawn, inside the drawing."""

from collections.abc import Sequence
from dataclasses import dataclass

LETTER, LINE = 7.0, 15.0
"""Pixels that a letter and a line of a label take."""

ASCENT = 11.0
"""Pixels from the foot of a line to its top."""

SIDES = ((9.0, 4.0), (-9.0, 4.0), (7.0, -9.0), (7.0, 17.0), (-7.0, -9.0), (-7.0, 17.0))
"""From a point to where its label begins or, left of it, ends: the best first."""

LINES_AWAY = 4
"""How many lines further up or down a label may stand."""

ON_TEXT, ON_DRAWN, FURTHER = 4.0, 1.0, 4.0
"""What a pixel of overlap costs, with another label or the edge and with what is drawn; what each worse side costs."""


@dataclass(frozen=True, slots=True)
class Box:
    """A part of the drawing, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def area(self) -> float:
        """Square pixels."""
        return max(0.0, self.right - self.left) * max(0.0, self.bottom - self.top)

    def shared(self, other: "Box") -> float:
        """The area of both."""
        return Box(
            max(self.left, other.left),
            max(self.top, other.top),
            min(self.right, other.right),
            min(self.bottom, other.bottom),
        ).area


@dataclass(frozen=True, slots=True)
class Spot:
    """A label's place. x: where it begins, or ends if it `ends_here`; y: the foot of its line."""

    x: float
    y: float
    ends_here: bool

    def box(self, text: str) -> Box:
        """What it covers."""
        width = LETTER * len(text)
        left = self.x - width if self.ends_here else self.x
        return Box(left, self.y - ASCENT, left + width, self.y - ASCENT + LINE)


def placed(wanted: Sequence[tuple[float, float, str]], drawn: Sequence[Box], inside: Box) -> list[Spot]:
    """A spot for the label of each point (x, y, text), one after another: the one that covers least. drawn: marks and
    lines that labels should not cover.
    """
    taken: list[Box] = []
    spots: list[Spot] = []
    for x, y, text in wanted:
        found = _spots(x, y)
        costs = [_cost(spot.box(text), taken, drawn, inside) + FURTHER * place for place, spot in enumerate(found)]
        spots.append(found[costs.index(min(costs))])
        taken.append(spots[-1].box(text))
    return spots


def _spots(x: float, y: float) -> list[Spot]:
    """The best first."""
    moves = [0.0, *(sign * n * LINE for n in range(1, LINES_AWAY + 1) for sign in (1, -1))]
    return [Spot(x + right, y + down + move, right < 0) for move in moves for right, down in SIDES]


def _cost(box: Box, taken: Sequence[Box], drawn: Sequence[Box], inside: Box) -> float:
    on_text = sum(map(box.shared, taken)) + box.area - box.shared(inside)
    return ON_TEXT * on_text + ON_DRAWN * sum(map(box.shared, drawn))
