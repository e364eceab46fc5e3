"""What paired seeds allow to be said: differences from a baseline, their intervals, and one word for each.

Pure numbers in, judgements out; finals and A/A studies go through the same `judge`.

The interval over seeds is Student's t of the paired differences: a percentile bootstrap over few seeds covers too
little (nominal 95 % covers 86 % at six). Where a task reads documents, seeds and documents are resampled together, and
the wider interval counts. Win and loss are Holm-corrected over the family, so that the chance of any false one among
equal rules is at most 1 - level.
"""

import functools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from archsearch.studies.evidence.student import critical, two_sided
from archsearch.studies.tasks.direction import Direction

Numbers = NDArray[np.float64]
Draws = NDArray[np.float64] | NDArray[np.float32]
BLOCK, MOST_AT_ONCE = 2500, 64
"""Resamples whose documents are summed at once; documents of which all resamples are kept in double precision."""


class Word(Enum):
    """What is said of an entrant against the baseline. TIE: the difference, if there is one, is too small to matter."""

    WIN = "win"
    LOSS = "loss"
    TIE = "tie"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Strictness:
    """What a verdict asks for.

    level: of the intervals, in (0, 1); 1 - level is what Holm's correction keeps to. seeds: fewer paired fresh ones
    decide nothing. resamples: of seeds and documents.
    """

    level: float = 0.95
    seeds: int = 6
    resamples: int = 10_000


STRICTNESS = Strictness()


@dataclass(frozen=True, slots=True)
class Documents:
    """Scores of the same documents, paired by seed: of the entrant and of the baseline [S, D], sizes [D].

    Of a text bits and bytes; of a task of sequences the share of right answers, and 1.
    """

    bits: Numbers
    against: Numbers
    sizes: Numbers


@dataclass(frozen=True, slots=True)
class Contest:
    """One entrant against the baseline in one objective.

    values, against: what each measured, paired by seed. band: how small a difference does not matter, >= 0. failed:
    what went wrong on seeds that have no value, in words; empty if nothing did. in_points: a share, whose differences
    are written in points.
    """

    name: str
    direction: Direction
    values: Sequence[float]
    against: Sequence[float]
    band: float = 0.0
    failed: str = ""
    documents: Documents | None = None
    in_points: bool = False


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean of `n` numbers and where the truth lies with the level asked for; without bounds below two numbers."""

    mean: float
    low: float
    high: float
    n: int

    def holds(self, value: float) -> bool:
        """Whether `value` lies inside."""
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is said of a contest. difference: entrant minus baseline. deviation: of the differences, over seeds.

    p: of Student's t, and `corrected` by Holm over the family; None where there are too few seeds. over: what the
    interval was drawn over, `seeds` or `seeds and documents`. reason: of the word, for people.
    """

    name: str
    word: Word
    reason: str
    difference: Interval
    median: float
    deviation: float
    band: float
    over: str
    p: float | None = None
    corrected: float | None = None


def judge(family: Sequence[Contest], strictness: Strictness = STRICTNESS) -> list[Judgement]:
    """A judgement of each contest; the family is what Holm's correction goes over, declared before the seeds ran."""
    tests = [_p(contest, strictness) for contest in family]
    decided = [p for p in tests if p is not None]
    corrected = iter(holm(decided))
    return [
        _judged(c, p, None if p is None else next(corrected), strictness) for c, p in zip(family, tests, strict=True)
    ]


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction: each compared with the share of the error that those before it leave."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    corrected = [0.0] * len(p)
    largest = 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - place) * p[i]))
        corrected[i] = largest
    return corrected


def student(numbers: Sequence[float], level: float = STRICTNESS.level) -> Interval:
    """The mean of independent numbers with Student's t interval. ValueError without numbers."""
    if not numbers:
        raise ValueError("an interval needs at least one number; got none")
    mean = math.fsum(numbers) / len(numbers)
    if len(numbers) < 2:
        return Interval(mean, -math.inf, math.inf, len(numbers))
    half = critical(level, len(numbers) - 1) * deviation(numbers) / math.sqrt(len(numbers))
    return Interval(mean, mean - half, mean + half, len(numbers))


def deviation(numbers: Sequence[float]) -> float:
    """The standard deviation of the population that `numbers` are from; NaN below two."""
    if len(numbers) < 2:
        return math.nan
    mean = math.fsum(numbers) / len(numbers)
    return math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1))


def resampled(documents: Documents, strictness: Strictness = STRICTNESS) -> tuple[float, float]:
    """The percentile interval of the difference in bits a byte, seeds and documents drawn again together.

    Every resample takes one draw of seeds and one of documents: they are crossed, as the data are.
    """
    difference = documents.bits - documents.against
    seeds, texts = (_draws(n, strictness.resamples, salt) for salt, n in enumerate(difference.shape))
    sums = np.concatenate([block @ difference.T for block in _blocks(texts)])
    means = np.einsum("rs,rs->r", sums, seeds) / difference.shape[0] / _sizes(documents.sizes, texts)
    outside = (1 - strictness.level) / 2
    low, high = np.quantile(means, (outside, 1 - outside))
    return float(low), float(high)


def _sizes(sizes: Numbers, texts: Draws) -> Numbers | float:
    """What the documents of each resample weigh; of equal ones always the same."""
    if (sizes == sizes[0]).all():
        return float(sizes.sum())
    return np.concatenate([block @ sizes for block in _blocks(texts)])


def _blocks(draws: Draws) -> Iterator[Numbers]:
    """Some resamples after another, in the precision of products: thousands of documents need not fit at once."""
    if len(draws.T) <= MOST_AT_ONCE:
        yield draws.astype(np.float64, copy=False)
        return
    for start in range(0, len(draws), BLOCK):
        yield draws[start : start + BLOCK].astype(np.float64)


@functools.lru_cache(maxsize=8)
def _draws(count: int, resamples: int, salt: int) -> Draws:
    """How often each of `count` is drawn in each resample, [resamples, count]; the same in every process."""
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence((salt, count))))
    drawn = random.multinomial(count, np.full(count, 1 / count), size=resamples)
    return drawn.astype(np.float64) if count <= MOST_AT_ONCE else drawn.astype(np.float32)


def _differences(contest: Contest) -> list[float]:
    return [a - b for a, b in zip(contest.values, contest.against, strict=True)]


def _p(contest: Contest, strictness: Strictness) -> float | None:
    """Student's two-sided p of the mean difference; None below the number of seeds that a verdict asks for."""
    differences = _differences(contest)
    if len(differences) < strictness.seeds:
        return None
    mean = math.fsum(differences) / len(differences)
    error = deviation(differences) / math.sqrt(len(differences))
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return two_sided(mean / error, len(differences) - 1)


def _judged(contest: Contest, p: float | None, corrected: float | None, strictness: Strictness) -> Judgement:
    differences = _differences(contest)
    interval, over = _interval(contest, differences, strictness)
    word, reason = _verdict(contest, interval, corrected, strictness)
    return Judgement(
        name=contest.name,
        word=word,
        reason=reason,
        difference=interval,
        median=statistics.median(differences) if differences else math.nan,
        deviation=deviation(differences),
        band=contest.band,
        over=over,
        p=p,
        corrected=corrected,
    )


def _interval(contest: Contest, differences: Sequence[float], strictness: Strictness) -> tuple[Interval, str]:
    """The wider of the interval over seeds and the one over seeds and documents."""
    if not differences:
        return Interval(math.nan, -math.inf, math.inf, 0), "seeds"
    of_seeds = student(differences, strictness.level)
    if contest.documents is None or len(differences) < 2:
        return of_seeds, "seeds"
    low, high = resampled(contest.documents, strictness)
    if high - low <= of_seeds.high - of_seeds.low:
        return of_seeds, "seeds"
    return Interval(of_seeds.mean, low, high, of_seeds.n), "seeds and documents"


def _verdict(contest: Contest, interval: Interval, corrected: float | None, strictness: Strictness) -> tuple[Word, str]:
    """The word and why."""
    if corrected is None:
        lost = f" ({contest.failed})" if contest.failed else ""
        return Word.UNDECIDED, f"{interval.n} paired fresh seeds{lost}; a verdict needs {strictness.seeds}"
    if contest.failed:
        return Word.UNDECIDED, f"not every seed has a value: {contest.failed}"
    if -contest.band <= interval.low and interval.high <= contest.band:
        differs = ", though not 0" if not interval.holds(0) else ""
        return Word.TIE, f"the difference is less than {_band_words(contest)}{differs}"
    if interval.holds(0):
        return Word.UNDECIDED, f"the interval over {_seeds_words(contest, interval)} holds 0"
    if corrected > 1 - strictness.level:
        return Word.UNDECIDED, f"p is {corrected:.3f} after Holm's correction"
    better = (interval.mean < 0) == (contest.direction is Direction.MINIMIZE)
    p = f"{corrected:.3f}" if corrected >= 0.001 else "below 0.001"
    return Word.WIN if better else Word.LOSS, f"the interval leaves out 0; p is {p} after Holm's correction"


def _band_words(contest: Contest) -> str:
    if not contest.in_points:
        return f"{contest.band:g}"
    points = f"{100 * contest.band:g}"
    return f"{points} point" if points == "1" else f"{points} points"


def _seeds_words(contest: Contest, interval: Interval) -> str:
    return f"{interval.n} seeds" if contest.documents is None else f"{interval.n} seeds and their documents"
