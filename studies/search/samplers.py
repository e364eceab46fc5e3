"""Samplers by name, made anew for every proposal so that a proposal depends on what was told and on nothing else."""

import contextlib
import hashlib
import random
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, CmaEsSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial

from archsearch.errors import ConfigError
from archsearch.holes import Choose, Chosen, Hole, OneOf, Uniform
from archsearch.spaces.resolution import structures
from archsearch.typed_data import check_fields

MOST_LEVELS = 1_000
"""Of a range in a grid."""

LARGEST_GRID = 100_000


@contextlib.contextmanager
def experimental() -> Generator[None]:
    """Use what Optuna still calls experimental without its warning: grouped parameters and names of objectives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


class SamplerKind(Enum):
    """Who proposes.

    tpe: Optuna's tree-structured Parzen estimator. nsga2: its genetic algorithm. cmaes: its CMA-ES, for numbers and one
    objective. random: chance. grid: every point once, in an order drawn by chance.
    """

    TPE = "tpe"
    NSGA2 = "nsga2"
    CMAES = "cmaes"
    RANDOM = "random"
    GRID = "grid"


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """How points are proposed.

    startup: random proposals before tpe or cmaes begins, the population of nsga2; None is max(20, twice the number of
    holes). random_every: every so many-th proposal is random, as a control of the search; 0 is none. levels: values
    that a grid takes of a range of numbers, its ends among them; None: the space must have no range.
    """

    kind: SamplerKind = SamplerKind.TPE
    startup: int | None = None
    random_every: int = 4
    levels: int | None = None

    def __post_init__(self) -> None:
        """Refuse other types and numbers out of range."""
        check_fields(self, "sampler")
        if self.startup is not None and self.startup < 1:
            raise ConfigError(f"sampler.startup must be >= 1; got {self.startup}")
        if self.kind is SamplerKind.NSGA2 and self.startup == 1:
            raise ConfigError("sampler.startup is the population of nsga2 and must be >= 2; got 1")
        if self.random_every < 0:
            raise ConfigError(f"sampler.random_every must be >= 0 (0: never); got {self.random_every}")
        if self.levels is not None and not 1 <= self.levels <= MOST_LEVELS:
            raise ConfigError(f"sampler.levels must be in 1 .. {MOST_LEVELS:,}; got {self.levels:,}")


def check_sampler(options: SamplerOptions, holes: Mapping[str, Hole], objectives: Sequence[str]) -> None:
    """Whether the sampler can search such a space. ConfigError."""
    if options.kind is SamplerKind.CMAES:
        if len(objectives) > 1:
            raise ConfigError(
                f"sampler.kind cmaes takes one objective; got {len(objectives)} ({', '.join(objectives)}); "
                "use tpe or nsga2"
            )
        choices = [path for path, hole in holes.items() if isinstance(hole, OneOf) and len(hole.labels) > 1]
        if choices:
            raise ConfigError(
                f"sampler.kind cmaes draws numbers only; {choices[0]} is a choice of names; use tpe or close the hole"
            )
    ranges = [path for path, hole in holes.items() if isinstance(hole, Uniform)]
    if options.kind is SamplerKind.GRID and options.levels is None and ranges:
        raise ConfigError(
            f"sampler.kind grid needs finitely many values; {ranges[0]} is a range; set sampler.levels, say to 4"
        )


def grid(resolve: Callable[[Choose], object], options: SamplerOptions, seed: int) -> list[dict[str, Chosen]]:
    """Every point of a space as its choices, branches not taken left out, in an order that `seed` draws.

    ConfigError for more than 100,000 points.
    """
    points: list[dict[str, Chosen]] = []

    def fill(choose: Choose) -> dict[str, Chosen]:
        choices: dict[str, Chosen] = {}

        def pick(path: str, hole: Hole) -> Chosen:
            choices[path] = _leveled(path, hole, choose, options.levels or 1)
            return choices[path]

        resolve(pick)
        return choices

    for _, choices in structures(fill):
        points.append(choices)
        if len(points) > LARGEST_GRID:
            raise ConfigError(
                f"sampler.kind grid takes at most {LARGEST_GRID:,} points; the space has more; use random"
            )
    random.Random(seed).shuffle(points)
    return points


def _leveled(path: str, hole: Hole, choose: Choose, levels: int) -> Chosen:
    """A choice where a range is one of its levels."""
    if not isinstance(hole, Uniform):
        return choose(path, hole)
    labels = tuple(str(level) for level in range(levels))
    share = int(choose(path, OneOf(labels, labels))) / (levels - 1) if levels > 1 else 0.5
    if hole.log:
        return float(min(hole.high, hole.low * (hole.high / hole.low) ** share))
    return float(min(hole.high, hole.low + (hole.high - hole.low) * share))


class SeededSampler(BaseSampler):
    """A sampler whose draws depend on a key and a parameter's name, not on how many draws this process made before."""

    def __init__(self, make: Callable[[int], BaseSampler], key: str) -> None:
        """make: from a seed to a sampler."""
        self._make = make
        self._key = key
        self._joint = self._seeded("")

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The parameters that are drawn together."""
        return self._joint.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw them."""
        return self._joint.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw one parameter."""
        return self._seeded(param_name).sample_independent(study, trial, param_name, param_distribution)

    def _seeded(self, name: str) -> BaseSampler:
        return self._make(int.from_bytes(hashlib.sha256(f"{self._key}/{name}".encode()).digest()[:4]))


class PointSampler(BaseSampler):
    """Draws one point, known before."""

    def __init__(self, point: Mapping[str, Chosen]) -> None:
        """point: path -> label or number."""
        self._point = point

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Nothing is drawn together."""
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Nothing."""
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The point's choice."""
        return self._point[param_name]


def maker(kind: SamplerKind, startup: int) -> Callable[[int], BaseSampler]:
    """From a seed to a sampler of a kind; a grid has none."""

    def make(seed: int) -> BaseSampler:
        with experimental():
            match kind:
                case SamplerKind.TPE:
                    return TPESampler(multivariate=True, group=True, n_startup_trials=startup, seed=seed)
                case SamplerKind.NSGA2:
                    return NSGAIISampler(population_size=startup, seed=seed)
                case SamplerKind.CMAES:
                    return CmaEsSampler(n_startup_trials=startup, warn_independent_sampling=False, seed=seed)
                case SamplerKind.RANDOM | SamplerKind.GRID:
                    return RandomSampler(seed)

    return make
