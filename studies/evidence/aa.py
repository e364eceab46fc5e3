"""A/A: one rule against itself, through the code that gives verdicts. How often does it name a winner where none is?

From a pool of really trained seeds of one rule, studies are drawn: a baseline and some finalists, each with seeds of
its own, judged as finals are. With the same seed a rule ties with itself exactly, so the arms must have different
seeds, and what pairing would remove stays in: the spread of a difference is larger than in paired finals, the chance of
a false winner the same.

How far this can be trusted:
- Inside a study no seed is used twice, so the differences of a pair are uncorrelated: with C the covariance of two
  draws without replacement, cov(a - b, c - d) = C - C - C + C = 0. Finalists share their baseline, as in finals.
- Studies of one pool overlap: a pool of 60 holds only 2 studies of 4 arms with 6 seeds that share nothing. Many drawn
  studies make the figures of *this pool* exact, they do not make the pool larger. What the pool leaves open is shown by
  the same figures of its two halves, which share no seed.
- Values far from a normal distribution, as a recall that some seeds never learn, are what the test is for.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from archsearch.errors import ConfigError, StudyError
from archsearch.studies.evidence.comparison import (
    STRICTNESS,
    Contest,
    Documents,
    Judgement,
    Numbers,
    Strictness,
    Word,
    deviation,
    judge,
)
from archsearch.studies.tasks.direction import Direction

LEAST_POOL = 60
LEAST_STUDIES = 200
MOST_STUDIES = 100_000


@dataclass(frozen=True, slots=True)
class Trained:
    """One objective of a pool of seeds of one rule. values: by seed. bits [S, D] and sizes [D] of its documents."""

    direction: Direction
    values: Sequence[float]
    band: float = 0.0
    bits: Numbers | None = None
    sizes: Numbers | None = None

    def only(self, seeds: Sequence[int]) -> "Trained":
        """The pool of some of the seeds, by place."""
        bits = None if self.bits is None else self.bits[list(seeds)]
        return Trained(self.direction, [self.values[i] for i in seeds], self.band, bits, self.sizes)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a drawn study looks like: its finalists beside the baseline, and the seeds of each; how many are drawn."""

    studies: int = 1000
    finalists: int = 3
    seeds: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        for name, value, least in (("studies", self.studies, 1), ("finalists", self.finalists, 1)):
            if value < least:
                raise ConfigError(f"{name} must be >= {least}; got {value}")
        if self.studies > MOST_STUDIES:
            raise ConfigError(f"studies must be <= {MOST_STUDIES:,}; got {self.studies:,}")
        if self.seeds < STRICTNESS.seeds:
            raise ConfigError(f"seeds must be >= {STRICTNESS.seeds}, as a verdict asks for; got {self.seeds}")

    @property
    def needed(self) -> int:
        """Seeds of one study."""
        return (self.finalists + 1) * self.seeds


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of the drawn studies in one objective.

    false_winners: share of studies in which some finalist is said to win; false_losers likewise. coverage: share of
    the comparisons whose interval holds 0, the truth. words: comparisons by word. half_width: of the intervals, their
    median; deviation: of the values over seeds.
    """

    studies: int
    comparisons: int
    false_winners: float
    false_losers: float
    coverage: float
    words: Mapping[str, int]
    half_width: float
    deviation: float

    def record(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Outcome:
    """An A/A study. objectives: figures by name. any_winner: share of studies with a false winner in any objective.

    halves: the figures of two halves of the pool; empty where they are too small for a study.
    """

    pool: int
    setting: Setting
    objectives: Mapping[str, Figures]
    any_winner: float
    halves: Sequence[Mapping[str, Figures]] = field(default_factory=tuple)

    def record(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "pool": self.pool,
            "studies": self.setting.studies,
            "finalists": self.setting.finalists,
            "seeds": self.setting.seeds,
            "any_winner": self.any_winner,
            "objectives": {name: figures.record() for name, figures in self.objectives.items()},
            "halves": [{name: figures.record() for name, figures in half.items()} for half in self.halves],
        }


def simulate(pool: Mapping[str, Trained], setting: Setting = Setting(), strictness: Strictness = STRICTNESS) -> Outcome:
    """Draw studies from `pool` (objectives of the same seeds) and judge them. StudyError if it is too small for one."""
    size = len(next(iter(pool.values())).values)
    if size < setting.needed:
        raise StudyError(
            f"an A/A study of {setting.finalists} finalists and a baseline on {setting.seeds} seeds needs a pool of "
            f"{setting.needed} trained seeds; got {size}; train more or ask for fewer finalists"
        )
    objectives, any_winner = drawn(pool, setting, strictness)
    halves: list[dict[str, Figures]] = []
    if size // 2 >= setting.needed:
        for part in (range(0, size, 2), range(1, size, 2)):
            halves.append(drawn({name: each.only(part) for name, each in pool.items()}, setting, strictness)[0])
    return Outcome(size, setting, objectives, any_winner, halves)


def drawn(
    pool: Mapping[str, Trained], setting: Setting, strictness: Strictness = STRICTNESS
) -> tuple[dict[str, Figures], float]:
    """The figures of studies drawn from a whole pool, and the share of studies with a false winner in any objective."""
    random = np.random.Generator(np.random.PCG64(setting.seed))
    size = len(next(iter(pool.values())).values)
    judged: dict[str, list[list[Judgement]]] = {name: [] for name in pool}
    for _ in range(setting.studies):
        arms = random.permutation(size)[: setting.needed].reshape(setting.finalists + 1, setting.seeds)
        for name, trained in pool.items():
            judged[name].append(judge([_contest(trained, i, arms) for i in range(setting.finalists)], strictness))
    winners = [any(_said(judged[name][study], Word.WIN) for name in pool) for study in range(setting.studies)]
    figures = {name: _figures(judged[name], pool[name]) for name in pool}
    return figures, sum(winners) / len(winners)


def _contest(trained: Trained, finalist: int, arms: np.ndarray[Any, np.dtype[np.int64]]) -> Contest:
    """Arm `finalist` + 1 against arm 0, paired by place."""
    mine, other = arms[finalist + 1], arms[0]
    documents = None
    if trained.bits is not None and trained.sizes is not None:
        documents = Documents(trained.bits[mine], trained.bits[other], trained.sizes)
    values = np.asarray(trained.values)
    return Contest(
        name=f"finalist {finalist + 1}",
        direction=trained.direction,
        values=cast(list[float], values[mine].tolist()),
        against=cast(list[float], values[other].tolist()),
        band=trained.band,
        documents=documents,
    )


def _said(study: Sequence[Judgement], word: Word) -> bool:
    return any(judgement.word is word for judgement in study)


def _figures(studies: Sequence[Sequence[Judgement]], trained: Trained) -> Figures:
    flat = [judgement for study in studies for judgement in study]
    return Figures(
        studies=len(studies),
        comparisons=len(flat),
        false_winners=sum(_said(study, Word.WIN) for study in studies) / len(studies),
        false_losers=sum(_said(study, Word.LOSS) for study in studies) / len(studies),
        coverage=sum(judgement.difference.holds(0.0) for judgement in flat) / len(flat),
        words={word.value: sum(judgement.word is word for judgement in flat) for word in Word},
        half_width=statistics.median((j.difference.high - j.difference.low) / 2 for j in flat),
        deviation=deviation(trained.values),
    )
