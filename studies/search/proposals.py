"""What to try next: Optuna's ask and tell, behind the few calls that the driver makes.

The journal is Optuna's own. Each proposal draws from a fresh sampler seeded by the study's seed and the trial's number,
so that proposals depend on what was told and not on how often the driver was restarted.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from archsearch.holes import Chosen
from archsearch.studies.files.directory import Measurement
from archsearch.studies.files.origins import PROPOSAL
from archsearch.studies.search.artifacts import Artifacts
from archsearch.studies.search.samplers import (
    PointSampler,
    SamplerKind,
    SamplerOptions,
    SeededSampler,
    experimental,
    maker,
)
from archsearch.studies.search.storage import JOURNAL, open_storage
from archsearch.studies.search.telling import Ending
from archsearch.studies.tasks.direction import Direction

STUDY_NAME = "archsearch"


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
        storage: str = JOURNAL,
        name: str = STUDY_NAME,
        points: Sequence[Mapping[str, Chosen]] | None = None,
    ) -> None:
        """Open the study, or begin it, in `journal` or in the database of that URL, where it has `name`.

        points: of a grid, in order. Errors: as `open_storage`.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._kept = open_storage(storage, journal)
        self._artifacts = Artifacts(journal.parent / "artifacts")
        self._options = options
        self._seed = seed
        self._startup = options.startup if options.startup is not None else max(20, 2 * holes)
        self._points = points
        self._study = optuna.create_study(
            storage=self._kept.storage,
            study_name=name,
            directions=[way.value for way in objectives.values()],
            load_if_exists=True,
        )
        with experimental():
            if self._study.metric_names != list(objectives):
                self._study.set_metric_names(list(objectives))

    def close(self) -> None:
        """Let go of the storage."""
        self._kept.close()

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

    def ended(self) -> list[int]:
        """The numbers of the trials that were told."""
        return [t.number for t in self._study.get_trials(deepcopy=False) if t.state.is_finished()]

    def spent(self) -> bool:
        """Whether every point of a grid was proposed."""
        trials = self._study.get_trials(deepcopy=False)
        return self._points is not None and _drawn(trials) >= len(self._points)

    def count(self) -> int:
        """How many trials there are, whatever their state."""
        return len(self._study.get_trials(deepcopy=False))

    def ask(self, *, at_random: bool = False, among: Sequence[Mapping[str, Chosen]] = ()) -> tuple[Trial, str]:
        """The next trial and the name of its sampler; its choices are drawn as they are asked for. among: the points
        that chance draws from; none are all of the space.
        """
        return self._armed(self._study.ask(), at_random=at_random, among=among)

    def reopen(
        self, number: int, *, at_random: bool = False, among: Sequence[Mapping[str, Chosen]] = ()
    ) -> tuple[Trial, str]:
        """The unfinished trial `number` again: choices made stand, the others are drawn as they would have been."""
        return self._armed(self._handle(number), at_random=at_random, among=among)

    def origin(self, number: int) -> str:
        """`proposal`, or what the trial was enqueued as."""
        return str(self._frozen(number).user_attrs.get("origin", PROPOSAL))

    def leader(self, number: int) -> int | None:
        """The trial that this one is a companion of; None if it is none."""
        return self._frozen(number).user_attrs.get("leader")

    def state(self, number: int) -> TrialState:
        """Optuna's state of the trial."""
        return self._frozen(number).state

    def keep_files(self, number: int, proposal: Mapping[str, Any], curve: Sequence[Measurement]) -> None:
        """Put the files of a trial that is about to be told complete into the store of artifacts."""
        self._artifacts.keep(self._handle(number), proposal, curve)

    def tell(self, number: int, ending: Ending) -> None:
        """End trial `number`. Parts that were told before a crash are not told again."""
        trial, frozen = self._handle(number), self._frozen(number)
        for key, value in ending.attributes.items():
            if frozen.user_attrs.get(key) != value:
                trial.set_user_attr(key, value)
        for tokens, value in ending.curve.items():
            if tokens not in frozen.intermediate_values:
                trial.report(value, tokens)
        known = trial.constraints
        for key, value in ending.constraints.items():
            if key not in known:
                trial.set_constraint(key, value)
        self._study.tell(number, ending.values, ending.state)
        self._kept.flush()

    def _armed(self, trial: Trial, *, at_random: bool, among: Sequence[Mapping[str, Chosen]]) -> tuple[Trial, str]:
        """`trial` with the study's sampler replaced by the one of its number."""
        sampler, name = self._sampler(trial.number, at_random=at_random, among=among)
        self._study.sampler = sampler
        return trial, name

    def _sampler(
        self, number: int, *, at_random: bool, among: Sequence[Mapping[str, Chosen]]
    ) -> tuple[BaseSampler, str]:
        if self._points is not None:
            return PointSampler(self._points[self._place(number)]), SamplerKind.GRID.value
        if at_random and among:
            return PointSampler(Random(f"{self._seed}/{number}").choice(among)), SamplerKind.RANDOM.value
        every = self._options.random_every
        control = every > 0 and number % every == every - 1
        kind = SamplerKind.RANDOM if at_random or control else self._options.kind
        return SeededSampler(maker(kind, self._startup), f"{self._seed}/{number}"), kind.value

    def _place(self, number: int) -> int:
        """How many proposals came before trial `number`; a point of the grid that is enqueued needs none."""
        before = self._study.get_trials(deepcopy=False)[:number]
        return min(_drawn(before), len(self._points or ()) - 1)

    def _handle(self, number: int) -> Trial:
        """A live handle of a trial of an earlier run; neither the constructor nor the id is officially public in
        Optuna 5.
        """
        return Trial(self._study, self._frozen(number)._trial_id)  # pyright: ignore[reportPrivateUsage]

    def _frozen(self, number: int) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]


def _drawn(trials: Sequence[FrozenTrial]) -> int:
    """How many of the trials a sampler proposed, those that go with one of them left out."""
    return sum(t.user_attrs.get("origin", PROPOSAL) == PROPOSAL and "leader" not in t.user_attrs for t in trials)
