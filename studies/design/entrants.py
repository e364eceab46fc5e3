"""Points trained on several seeds: who enters, on which seeds, and how the engine is asked for them.

A study with entrants proposes nothing: each entrant meets each fresh seed, and every pair is an ordinary trial.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from archsearch.errors import ConfigError
from archsearch.holes import Choose, Chosen, Integer
from archsearch.mixers.lookup import find_rule
from archsearch.spaces.resolution import baseline, resolve
from archsearch.spaces.space import Point, Space
from archsearch.studies.design.points import Candidate
from archsearch.typed_data import check_fields

SEED = "seed"
"""The path of the seed among a trial's choices."""

LARGEST_SEED = 2**31 - 1
SEEDS_A_SEARCH = 1000
"""Fresh seeds of a search stand this far above its own, and above those of the search with the seed before."""


class Role(Enum):
    """Why an entrant is there."""

    BASELINE = "baseline"
    FINALIST = "finalist"
    FREE_PASS = "free pass"


@dataclass(frozen=True, slots=True)
class Entrant:
    """One point. choices: of the space's holes; none are those of the rule that the entrant is named after.

    trial, scores: which trial of the search found it, and what it measured there on the seed of the search.
    """

    choices: Mapping[str, Any] = field(default_factory=dict[str, Any])
    role: Role = Role.FINALIST
    trial: int | None = None
    scores: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Seeds:
    """Seeds of initialisation and data order, the same for every variant.

    search: of the trials of the search, and of its proposals. replicates: seeds that a variant may meet in the search
    where it is proposed again, >= 1; with 1 a repeated proposal is not run. finals: how many fresh ones entrants meet,
    >= 2; verdicts need six.
    """

    search: int = 0
    finals: int = 6
    replicates: int = 1

    def __post_init__(self) -> None:
        """Refuse other types and numbers out of range."""
        check_fields(self, "seeds")
        if not 0 <= self.search < LARGEST_SEED // SEEDS_A_SEARCH - 1:
            raise ConfigError(f"seeds.search must be in 0 .. {LARGEST_SEED // SEEDS_A_SEARCH - 2}; got {self.search}")
        if not 2 <= self.finals < SEEDS_A_SEARCH:
            raise ConfigError(
                f"seeds.finals must be in 2 .. {SEEDS_A_SEARCH - 1}, for one seed has no interval; got {self.finals}"
            )
        if not 1 <= self.replicates <= SEEDS_A_SEARCH - self.finals:
            most = SEEDS_A_SEARCH - self.finals
            raise ConfigError(f"seeds.replicates must be in 1 .. {most}; got {self.replicates}")

    def replicate(self, count: int) -> int | None:
        """The seed of the search for a variant that has `count` >= 1 trials; None once it has met all. Counted down
        from above the fresh ones, which it never meets.
        """
        return None if count >= self.replicates else SEEDS_A_SEARCH * (self.search + 2) - count

    @property
    def fresh(self) -> tuple[int, ...]:
        """The seeds of entrants; the search never uses them."""
        first = SEEDS_A_SEARCH * (self.search + 1)
        return tuple(range(first + 1, first + 1 + self.finals))


@dataclass(frozen=True, slots=True)
class Seeded:
    """A point on one of the fresh seeds, as the driver takes it."""

    candidate: Candidate
    seed: int

    @property
    def variant_hash(self) -> str:
        """Another one for another seed: two seeds of one variant are two trials."""
        return hashlib.sha256(f"{self.candidate.variant_hash}/{self.seed}".encode()).hexdigest()

    def record(self) -> dict[str, object]:
        """Its part of trial.json."""
        return {**self.candidate.record(), "seed": self.seed, "entrant_hash": self.candidate.variant_hash}


def resolve_seeded(space: Space, choose: Choose) -> Seeded:
    """The point and the seed that a chooser gives."""
    return Seeded(Candidate(space.resolve(choose), space.hash), int(choose(SEED, Integer(0, LARGEST_SEED, 1))))


def entrant_points(space: Space, entrants: Mapping[str, Entrant]) -> dict[str, Point]:
    """The points of the entrants. HoleError, SpaceError or RuleError for choices that make none; ConfigError for two
    entrants that are one variant.
    """
    points: dict[str, Point] = {}
    names: dict[str, str] = {}
    for name, entrant in entrants.items():
        choices = dict(entrant.choices) or baseline(space, name, find_rule(name))
        points[name] = resolve(space, choices)
        other = names.setdefault(points[name].variant_hash, name)
        if other != name:
            raise ConfigError(f"entrants must be different variants; {other} and {name} are one: leave one out")
    return points


def enqueued(points: Mapping[str, Point], seeds: Seeds) -> dict[str, dict[str, Chosen]]:
    """The choices of every trial by name, entrant after entrant: those that may train as one batched model stand
    together.
    """
    return {
        trial_name(name, seed): {**point.choices, SEED: seed} for name, point in points.items() for seed in seeds.fresh
    }


def trial_name(entrant: str, seed: int) -> str:
    """How a trial of an entrant is called."""
    return f"{entrant}, seed {seed}"


def entrant_records(points: Mapping[str, Point], entrants: Mapping[str, Entrant]) -> dict[str, dict[str, Any]]:
    """What readers of a study want to know of its entrants, plain data by name."""
    return {
        name: {
            "hash": point.variant_hash,
            "role": entrants[name].role.value,
            "trial": entrants[name].trial,
            "scores": dict(entrants[name].scores),
        }
        for name, point in points.items()
    }
