"""The Pareto front with what is uncertain about it: finals with intervals where there are any, else single trials."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from archsearch.report.tables import Cell
from archsearch.studies.design.entrants import Role
from archsearch.studies.evidence.comparison import Interval, Word
from archsearch.studies.evidence.conclusions import Conclusions
from archsearch.studies.evidence.rows import Evidence
from archsearch.studies.evidence.wording import within
from archsearch.studies.search.fronts import dominates, losses


@dataclass(frozen=True, slots=True)
class Place:
    """A variant among the others. trial: its number in a search; None for the mean of several seeds.

    values: by objective; a single trial has an interval without bounds. on_front: no other is better in every mean.
    beaten_by: those that have better means in every objective (not worse in any), and of which a verdict says so
    where there is one: a variant off the front that nobody beats for certain has none.
    """

    name: str
    trial: int | None
    is_baseline: bool
    values: Mapping[str, Interval]
    on_front: bool
    beaten_by: tuple[str, ...]

    def row(self) -> dict[str, Cell]:
        """Plain data, infinite bounds left out."""
        row: dict[str, Cell] = {
            "name": self.name,
            "trial": self.trial,
            "front": "yes" if self.on_front else "no",
            "seeds": next(iter(self.values.values())).n,
            "beaten_by": ", ".join(self.beaten_by),
        }
        for name, interval in self.values.items():
            row[name] = interval.mean
            is_bounded = math.isfinite(interval.low)
            row[f"{name}_low"] = within(name, interval.low) if is_bounded else None
            row[f"{name}_high"] = within(name, interval.high) if is_bounded else None
        return row


def places(evidence: Evidence, concluded: Conclusions | None = None) -> list[Place]:
    """Every variant with all objectives, those on the front first, best in the first objective first.

    concluded: of a study of entrants; without it the judged trials of a search, one seed each.
    """
    found = _of_finals(evidence, concluded) if concluded is not None else _of_search(evidence)
    return sorted(found, key=lambda place: (not place.on_front, _point(evidence, place.values)))


def _of_search(evidence: Evidence) -> list[Place]:
    rows = evidence.judged
    points = [losses(row.values, evidence.objectives) for row in rows]
    placed: list[Place] = []
    for row, point in zip(rows, points, strict=True):
        better = [other.name for other, rival in zip(rows, points, strict=True) if dominates(rival, point)]
        values = {name: Interval(row.values[name], -math.inf, math.inf, row.seeds) for name in evidence.objectives}
        placed.append(Place(row.name, row.number, row.is_baseline, values, not better, tuple(better)))
    return placed


def _of_finals(evidence: Evidence, concluded: Conclusions) -> list[Place]:
    complete = [s for s in concluded.standings.values() if set(s.means) == set(evidence.objectives)]
    points = {s.name: _point(evidence, s.means) for s in complete}
    placed: list[Place] = []
    for standing in complete:
        rivals = [name for name, point in points.items() if dominates(point, points[standing.name])]
        sure = tuple(name for name in rivals if _is_sure(concluded, name, standing.name))
        values = dict(standing.means)
        is_baseline = standing.role is Role.BASELINE
        placed.append(Place(standing.name, None, is_baseline, values, not rivals, sure))
    return placed


def _is_sure(concluded: Conclusions, better: str, worse: str) -> bool:
    """Whether a verdict says that one beats the other: they are given against the named baseline alone."""
    if worse == concluded.against:
        words = [judgement.word for judgement in concluded.of(better).values()]
        return Word.WIN in words and set(words) <= {Word.WIN, Word.TIE}
    if better == concluded.against:
        words = [judgement.word for judgement in concluded.of(worse).values()]
        return Word.LOSS in words and set(words) <= {Word.LOSS, Word.TIE}
    return False


def _point(evidence: Evidence, values: Mapping[str, Interval]) -> tuple[float, ...]:
    means = {name: interval.mean for name, interval in values.items()}
    return losses(means, evidence.objectives)
