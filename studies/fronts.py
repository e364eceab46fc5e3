"""Order among points with several objectives: fronts, and inside a front the volume that a point alone adds.

Points are tuples in which smaller is better; `losses` turns an objective's values into that form.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

Point = tuple[float, ...]


class Direction(Enum):
    """Which way an objective is better."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"


def losses(values: Mapping[str, float], objectives: Mapping[str, Direction]) -> Point:
    """The values of `objectives`, in their order, signed so that smaller is better. KeyError if one is missing."""
    return tuple(values[name] if way is Direction.MINIMIZE else -values[name] for name, way in objectives.items())


def dominates(one: Point, other: Point) -> bool:
    """Whether `one` is nowhere worse than `other` and somewhere better."""
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def front(points: Sequence[Point]) -> list[int]:
    """The indices of the points that no other point dominates; equal points are all on the front."""
    return [i for i, point in enumerate(points) if not any(dominates(other, point) for other in points)]


def ranking(points: Sequence[Point]) -> list[int]:
    """All indices, best first: by front, inside a front by exclusive hypervolume, then by age (index).

    With one objective this is the order of its values.
    """
    remaining = list(range(len(points)))
    order: list[int] = []
    while remaining:
        chosen = [remaining[i] for i in front([points[i] for i in remaining])]
        order += sorted(chosen, key=lambda i: (-_exclusive(i, chosen, points), i))
        remaining = [i for i in remaining if i not in chosen]
    return order


def _exclusive(index: int, members: Sequence[int], points: Sequence[Point]) -> float:
    """The volume that the point alone adds to its front, in units of the spread of all points."""
    if len(members) == 1:
        return 0.0
    scaled = _scaled(points)
    reference = (1.1,) * len(points[0])
    mine = scaled[index]
    limited = [tuple(max(a, b) for a, b in zip(mine, scaled[i], strict=True)) for i in members if i != index]
    return _volume([mine], reference) - _volume(limited, reference)


def _scaled(points: Sequence[Point]) -> list[Point]:
    lows = [min(column) for column in zip(*points, strict=True)]
    spans = [max(column) - min(column) or 1.0 for column in zip(*points, strict=True)]
    return [tuple((x - low) / span for x, low, span in zip(p, lows, spans, strict=True)) for p in points]


def _volume(points: Sequence[Point], reference: Point) -> float:
    """The volume between `points` and `reference`, by slices along the last objective."""
    best = sorted({points[i] for i in front(points)}, key=lambda p: p[-1])
    if not best:
        return 0.0
    if len(reference) == 1:
        return reference[0] - best[0][0]
    total = 0.0
    for position, point in enumerate(best):
        following = best[position + 1][-1] if position + 1 < len(best) else reference[-1]
        total += (following - point[-1]) * _volume([p[:-1] for p in best[: position + 1]], reference[:-1])
    return total
