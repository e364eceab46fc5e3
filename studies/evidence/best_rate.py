"""Which learning rate suits a structure best: over all objectives, so that one still at chance decides little."""

import statistics
from collections.abc import Mapping, Sequence

from archsearch.studies.evidence.wording import is_share
from archsearch.studies.search.fronts import losses
from archsearch.studies.tasks.direction import Direction


def best_rate(values: Sequence[Mapping[str, float]], objectives: Mapping[str, Direction]) -> int:
    """The place of the rate whose ranks have the best mean over all objectives; equal values share the mean of their
    ranks. values: what one structure measured, a mapping a rate.

    Of equal means the best in what is no share counts (bits per byte, a loss: they tell rates apart where an accuracy
    is all noise), objective after objective; then the best in the shares, then the earliest.
    """
    points = [losses(each, objectives) for each in values]
    columns = [_ranks([point[i] for point in points]) for i in range(len(objectives))]
    order = sorted(range(len(objectives)), key=lambda i: is_share(list(objectives)[i]))

    def merit(place: int) -> tuple[float, ...]:
        ranks = [column[place] for column in columns]
        return (statistics.fmean(ranks), *(ranks[i] for i in order), place)

    return min(range(len(points)), key=merit)


def _ranks(column: Sequence[float]) -> list[float]:
    """How many are smaller, and half of those that are equal."""
    return [sum(x < own for x in column) + sum(x == own for x in column) / 2 for own in column]
