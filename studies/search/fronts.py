"""Order among points with several objectives: fronts, and inside a front the volume that a point alone adds.

Points are tuples in which smaller is better; `losses` turns an objective's values into that form.
"""

import bisect
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from archsearch.studies.tasks.direction import Direction

Point = tuple[float, ...]
Array = NDArray[np.float64]
REFERENCE = 1.1
"""The corner that volumes are measured to, in units of the spread of all points."""


def losses(values: Mapping[str, float], objectives: Mapping[str, Direction]) -> Point:
    """The values of `objectives`, in their order, signed so that smaller is better. KeyError if one is missing."""
    return tuple(values[name] if way is Direction.MINIMIZE else -values[name] for name, way in objectives.items())


def dominates(one: Point, other: Point) -> bool:
    """Whether `one` is nowhere worse than `other` and somewhere better."""
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def front(points: Sequence[Point]) -> list[int]:
    """The indices of the points that no other point dominates; equal points are all on the front."""
    if not points:
        return []
    return [int(i) for i in np.flatnonzero(~_domination(_array(points)).any(axis=0))]


def fronts(points: Sequence[Point]) -> Iterator[list[int]]:
    """The indices of the points, front by front, best first."""
    if not points:
        return
    beaten = _domination(_array(points))
    count = beaten.sum(axis=0)
    while (count == 0).any():
        members = np.flatnonzero(count == 0)
        yield [int(i) for i in members]
        count -= beaten[members].sum(axis=0)
        count[members] = -1


def ranking(points: Sequence[Point]) -> list[int]:
    """All indices, best first: by front, inside a front by exclusive hypervolume, then by age (index).

    With one objective this is the order of its values.
    """
    scaled = _scaled(points)
    return [index for members in fronts(points) for index in _by_volume(members, scaled)]


def place(points: Sequence[Point], index: int) -> int:
    """Where `index` stands in the ranking of `points`, from 0; quicker than the whole ranking."""
    before = 0
    for members in fronts(points):
        if index in members:
            return before + _by_volume(members, _scaled(points)).index(index)
        before += len(members)
    raise IndexError(index)


def _array(points: Sequence[Point]) -> Array:
    return np.asarray(points, dtype=np.float64)


def _domination(points: Array) -> NDArray[np.bool_]:
    """Whether point i dominates point j, [i, j]."""
    no_worse = np.ones((len(points), len(points)), dtype=np.bool_)
    better = np.zeros_like(no_worse)
    for column in points.T:
        no_worse &= column[:, None] <= column
        better |= column[:, None] < column
    return no_worse & better


def _scaled(points: Sequence[Point]) -> Array:
    """The points in units of their spread, so that each objective lies in [0, 1]."""
    array = _array(points)
    if not len(array):
        return array
    spans = np.ptp(array, axis=0)
    return (array - array.min(axis=0)) / np.where(spans == 0, 1.0, spans)


def _by_volume(members: Sequence[int], scaled: Array) -> list[int]:
    """The members of a front, those first that add most volume of their own."""
    chosen = scaled[list(members)]
    own = _pairs(chosen) if chosen.shape[1] == 2 else [_exclusive(i, chosen) for i in range(len(chosen))]
    return [members[i] for i in sorted(range(len(members)), key=lambda i: (-own[i], i))]


def _pairs(chosen: Array) -> list[float]:
    """The exclusive volumes on a front of two objectives: each point's own rectangle up to its two neighbours."""
    if len(chosen) == 1:
        return [0.0]
    order = np.lexsort((chosen[:, 1], chosen[:, 0]))
    right = np.append(chosen[order[1:], 0], REFERENCE)
    above = np.append(REFERENCE, chosen[order[:-1], 1])
    own = np.empty(len(chosen))
    own[order] = (right - chosen[order, 0]) * (above - chosen[order, 1])
    return [float(x) for x in own]


def _exclusive(index: int, chosen: Array) -> float:
    """The volume that a point alone adds to its front."""
    if len(chosen) == 1:
        return 0.0
    limited = np.maximum(np.delete(chosen, index, axis=0), chosen[index])
    return _volume(chosen[index : index + 1]) - _volume(limited)


def _volume(points: Array) -> float:
    """The volume between points and the reference, by slices along the last objective."""
    if points.shape[1] == 3:
        return _sweep(points[np.argsort(points[:, -1], kind="stable")].tolist())
    points = np.unique(points, axis=0)
    points = points[~_domination(points).any(axis=0)]
    if points.shape[1] == 1:
        return REFERENCE - float(points[0, 0])
    if points.shape[1] == 2:  # np.unique has sorted them by the first
        return float(((REFERENCE - points[:, 0]) * (np.append(REFERENCE, points[:-1, 1]) - points[:, 1])).sum())
    points = points[np.argsort(points[:, -1], kind="stable")]
    depths = np.append(points[1:, -1], REFERENCE) - points[:, -1]
    return sum(float(depth) * _volume(points[: i + 1, :-1]) for i, depth in enumerate(depths) if depth > 0)


def _sweep(points: Sequence[Sequence[float]]) -> float:
    """The volume of points of three objectives, sorted by the last: an area that grows while the last one rises."""
    xs: list[float] = []
    ys: list[float] = []
    area = total = 0.0
    last = points[0][2]
    for x, y, z in points:
        total, last = total + area * (z - last), z
        i = bisect.bisect_left(xs, x)
        if (i and ys[i - 1] <= y) or (i < len(xs) and xs[i] == x and ys[i] <= y):
            continue
        j, start, top = i, x, ys[i - 1] if i else REFERENCE
        while j < len(xs) and ys[j] >= y:
            area += (xs[j] - start) * (top - y)
            start, top, j = xs[j], ys[j], j + 1
        area += ((xs[j] if j < len(xs) else REFERENCE) - start) * (top - y)
        xs[i:j], ys[i:j] = [x], [y]
    return total + area * (REFERENCE - last)
