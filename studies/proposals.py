"""What to try next: Optuna's ask and tell, behind the few calls that the driver makes.

The journal is Optuna's own. Each proposal draws from a fresh sampler seeded by the study's seed and the trial's number,
so that proposals depend on what was told and not on how often the driver was restarted.
"""

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from archsearch.errors import ConfigError
from archsearch.studies import records
from archsearch.studies.fronts import Direction

STUDY_NAME = "archsearch"


@contextlib.contextmanager
def _experimental() -> Generator[None]:
    """Use what Optuna still calls experimental without its warning: grouped parameters and names of objectives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


class SamplerKind(Enum):
    """Who proposes: Optuna's tree-structured Parzen estimator, or chance."""

    TPE = "tpe"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """How points are proposed.

    startup: random proposals before the estimator begins; None is max(20, twice the number of holes). random_every:
    every so many-th proposal is random, as a control of the search; 0 is none.
    """

    kind: SamplerKind = SamplerKind.TPE
    startup: int | None = None
    random_every: int = 4

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        if self.startup is not None and self.startup < 1:
            raise ConfigError(f"sampler.startup must be >= 1; got {self.startup}")
        if self.random_every < 0:
            raise ConfigError(f"sampler.random_every must be >= 0 (0: never); got {self.random_every}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Optuna is told about a trial: `values` if it is complete, `constraints` if it was stopped or its rule
    failed.

    curve: the single objective by tokens, empty with several objectives. attributes: flat facts for dashboards. A
    verdict without values and constraints is a failure that teaches the sampler nothing.
    """

    values: tuple[float, ...] | None = None
    constraints: Mapping[str, float] = field(default_factory=dict[str, float])
    curve: Mapping[int, float] = field(default_factory=dict[int, float])
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def state(self) -> TrialState:
        """Optuna's name for it."""
        if self.values is not None:
            return TrialState.COMPLETE
        return TrialState.PRUNED if self.constraints else TrialState.FAIL


class _SeededSampler(BaseSampler):
    """A sampler whose draws depend on a key and a parameter's name, not on how many draws this process made before."""

    def __init__(self, make: Callable[[int], BaseSampler], key: str) -> None:
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


class Proposals:
    """One study of Optuna. The caller holds the study's lock and is the only writer."""

    def __init__(
        self,
        journal: Path,
        objectives: Mapping[str, Direction],
        options: SamplerOptions,
        *,
        seed: int,
        holes: int,
    ) -> None:
        """Open `journal`, mended if a crash tore it, or begin it. DamagedError if it holds something else."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        records.cut_torn_tail(journal)
        records.read_lines(journal)  # Optuna names neither the file nor the line
        journal.with_name(journal.name + ".lock").unlink(missing_ok=True)
        self._options = options
        self._seed = seed
        self._startup = options.startup if options.startup is not None else max(20, 2 * holes)
        self._study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(journal))),
            study_name=STUDY_NAME,
            directions=[way.value for way in objectives.values()],
            load_if_exists=True,
        )
        with _experimental():
            self._study.set_metric_names(list(objectives))

    def enqueue(self, choices: Mapping[str, Any], origin: str, *, leader: int | None = None) -> None:
        """Propose `choices` before anything else; a point enqueued earlier is not enqueued again.

        leader: the trial that it is a companion of.
        """
        attributes = {"origin": origin} if leader is None else {"origin": origin, "leader": leader}
        self._study.enqueue_trial(dict(choices), user_attrs=attributes, skip_if_exists=True)

    def waiting(self) -> int:
        """How many enqueued points nobody asked for yet."""
        return len(self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def running(self) -> list[int]:
        """The numbers of the trials that were asked for and not told."""
        return [t.number for t in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))]

    def ask(self, *, at_random: bool = False) -> tuple[Trial, str]:
        """The next trial and the name of its sampler; its choices are drawn as they are asked for."""
        return self._armed(self._study.ask(), at_random=at_random)

    def reopen(self, number: int, *, at_random: bool = False) -> tuple[Trial, str]:
        """The unfinished trial `number` again: choices made stand, the others are drawn as they would have been."""
        return self._armed(self._handle(number), at_random=at_random)

    def origin(self, number: int) -> str:
        """`proposal`, or what the trial was enqueued as."""
        return str(self._frozen(number).user_attrs.get("origin", "proposal"))

    def leader(self, number: int) -> int | None:
        """The trial that this one is a companion of; None if it is none."""
        return self._frozen(number).user_attrs.get("leader")

    def state(self, number: int) -> TrialState:
        """Optuna's state of the trial."""
        return self._frozen(number).state

    def tell(self, number: int, verdict: Verdict) -> None:
        """End trial `number`. Parts that were told before a crash are not told again."""
        trial, frozen = self._handle(number), self._frozen(number)
        for key, value in verdict.attributes.items():
            if frozen.user_attrs.get(key) != value:
                trial.set_user_attr(key, value)
        for tokens, value in verdict.curve.items():
            if tokens not in frozen.intermediate_values:
                trial.report(value, tokens)
        known = trial.constraints
        for key, value in verdict.constraints.items():
            if key not in known:
                trial.set_constraint(key, value)
        self._study.tell(number, verdict.values, verdict.state)

    def _armed(self, trial: Trial, *, at_random: bool) -> tuple[Trial, str]:
        """`trial` with the study's sampler replaced by the one of its number."""
        sampler, name = self._sampler(trial.number, at_random=at_random)
        self._study.sampler = sampler
        return trial, name

    def _sampler(self, number: int, *, at_random: bool) -> tuple[BaseSampler, str]:
        every = self._options.random_every
        control = every > 0 and number % every == every - 1
        random = self._options.kind is SamplerKind.RANDOM or at_random or control
        make = RandomSampler if random else self._estimator
        return _SeededSampler(make, f"{self._seed}/{number}"), "random" if random else "tpe"

    def _estimator(self, seed: int) -> BaseSampler:
        with _experimental():
            return TPESampler(multivariate=True, group=True, n_startup_trials=self._startup, seed=seed)

    def _handle(self, number: int) -> Trial:
        """A live handle of a trial of an earlier run; neither the constructor nor the id is officially public in
        Optuna 5.
        """
        return Trial(self._study, self._frozen(number)._trial_id)  # pyright: ignore[reportPrivateUsage]

    def _frozen(self, number: int) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]
