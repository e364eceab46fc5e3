"""Trials of one structure from their checkpoints to their ends, trained as one batched model by fractions of budgets.

Each keeps what it keeps when it trains alone: its checkpoints, its evaluations, its stops and its faults.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from archsearch.errors import ConfigError
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.studies.outcomes import Unstable
from archsearch.studies.tasks.task import Part, Task
from archsearch.studies.training.randomness import repeatable
from archsearch.studies.training.run import half_precision, steps_of
from archsearch.studies.training.together.folding import fold, why_not_folded
from archsearch.studies.training.together.lane import Lane
from archsearch.studies.training.together.lockstep import evaluate_in_lockstep
from archsearch.studies.training.together.rows import Layout
from archsearch.studies.training.together.stack import Course, Stack, rows_for
from archsearch.studies.training.trial import (
    Plan,
    State,
    Supervisor,
    build_entry,
    evaluation_grid,
    read_trial,
    write_trial,
)

KEEPING_THREADS = 8
"""Checkpoints written at a time: hashing and the disk take longer than a small model's training."""


@dataclass(frozen=True, slots=True)
class Member:
    """One trial of a group. Plans of a group differ in seeds and rates alone."""

    plan: Plan
    checkpoints: Path
    supervisor: Supervisor


End = Callable[[int, Mapping[str, Any] | Exception], None]
"""Told a member's place and its facts, or the exception that ended it; called as soon as that is known."""


def train_together(members: Sequence[Member], end: End, *, most: int | None = None, threads: int = 1) -> None:
    """Train all members to their ends. most: rows of the batched model, by default as many as members. threads: of the
    CPU, that draw the data.

    A member's own fault (a loss that is no longer finite, an attempt shut out) ends that member alone; where memory is
    short the group is halved; any other exception ends those that were training. What `end` raises, passes.
    Errors: ConfigError for models that cannot be batched.
    """
    _Group(members, end, most or len(members), threads).run()


class _Trial:
    """A member, and how far it has come."""

    def __init__(self, number: int, member: Member, layouts: Mapping[str, Layout]) -> None:
        self.number, self.plan, self.supervisor = number, member.plan, member.supervisor
        self.checkpoints = member.checkpoints
        self.fraction, self.seconds = 0.0, 0.0
        self.lanes: dict[str, Lane] = {}
        for entry in self.plan.entries:
            name = entry.task.name
            weights = layouts[name].row(dict(build_entry(self.plan, entry.task).named_parameters()))
            plan = self.plan
            self.lanes[name] = Lane.fresh(layouts[name], weights, plan.training, plan.seed, plan.device)

    def resume(self) -> None:
        """Go back to the newest checkpoint, if there is one."""
        kept = read_trial(self.plan, self.checkpoints)
        if kept is None:
            return
        for name, lane in self.lanes.items():
            lane.restore(kept.tensors[name], kept.steps[name])
        self.fraction, self.seconds = kept.fraction, kept.seconds

    def keep(self) -> None:
        """Write a checkpoint."""
        steps = {name: lane.step for name, lane in self.lanes.items()}
        tensors = {name: lane.tensors() for name, lane in self.lanes.items()}
        write_trial(self.plan, self.checkpoints, State(self.fraction, self.seconds, steps, tensors))

    @property
    def fault(self) -> str:
        """What is no longer finite, in words, or nothing."""
        return next((lane.fault for lane in self.lanes.values() if lane.fault), "")


class _Group:
    """The trials that still train, and the batched models of those that trained last."""

    def __init__(self, members: Sequence[Member], end: End, most: int, threads: int) -> None:
        plan = members[0].plan
        self.end, self.most = end, most
        self.device = plan.device
        self.models = {entry.task.name: _folded(plan, entry.task) for entry in plan.entries}
        self.courses = {entry.task.name: _course(plan, entry.task, entry.tokens, threads) for entry in plan.entries}
        layouts = {name: Layout.of(model) for name, model in self.models.items()}
        self.grid = evaluation_grid(plan.evaluations, members[0].supervisor.rung_fractions)
        self.due = evaluation_grid(1, members[0].supervisor.rung_fractions)
        self.stacks: dict[str, Stack] = {}
        self.stacked: list[_Trial] = []
        self.live: list[_Trial] = []
        for number, member in enumerate(members):
            trial = _Trial(number, member, layouts)
            if self._holds(trial, trial.resume):
                self.live.append(trial)

    def run(self) -> None:
        """Round after round: those that are furthest behind train to the next evaluation."""
        while self.live:
            fraction = min(trial.fraction for trial in self.live)
            for trial in [trial for trial in self.live if trial.fraction == fraction]:
                self._ask(trial)
            behind = [trial for trial in self.live if trial.fraction == fraction]
            while behind:
                now, behind = behind[: self.most], behind[self.most :]
                self._round(now, self._next(fraction))

    def _ask(self, trial: _Trial) -> None:
        """End a trial that is done or told to stop."""
        stops = trial.fraction >= 1
        if not stops and not self._holds(trial, lambda: self._note(trial, trial.supervisor.goes_on(trial.fraction))):
            return
        if stops:
            self._leave(trial, self._facts(trial))

    def _note(self, trial: _Trial, goes_on: bool) -> None:
        if not goes_on:
            self._leave(trial, self._facts(trial))

    def _next(self, fraction: float) -> float:
        """The next fraction to evaluate at: at a rung, or after a step at least."""
        for target in self.grid:
            steps = any(round(target * c.steps) > round(fraction * c.steps) for c in self.courses.values())
            if target > fraction and (target in self.due or steps):
                return target
        return 1.0

    def _round(self, trials: list[_Trial], target: float) -> None:
        """Train, evaluate, record and keep; in halves where memory is short."""
        short: Exception | None = None
        try:
            began = time.perf_counter()
            self._train(trials, target)
            seconds = (time.perf_counter() - began) / len(trials)
            values = self._evaluate(trials)
        except (torch.OutOfMemoryError, MemoryError) as error:
            short = error.with_traceback(None)
        except Exception as error:
            for trial in trials:
                self._leave(trial, error)
            return
        if short is None:
            self._settle(trials, target, seconds, values)  # pyright: ignore[reportPossiblyUnboundVariable]
            return
        self.stacks, self.stacked = {}, []
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if len(trials) == 1:
            self._leave(trials[0], short)
            return
        self.most = -(-len(trials) // 2)
        self._round(trials[: self.most], target)
        self._round(trials[self.most :], target)

    def _train(self, trials: list[_Trial], target: float) -> None:
        if trials != self.stacked:
            self.stacks, self.stacked = {}, []  # the old ones' memory goes first
            rows = rows_for(len(trials), self.most)
            for name, model in self.models.items():
                lanes = [trial.lanes[name] for trial in trials]
                self.stacks[name] = Stack(model, lanes, rows, self.courses[name])
            self.stacked = trials
        for name, stack in self.stacks.items():
            stack.advance(round(target * self.courses[name].steps))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _evaluate(self, trials: list[_Trial]) -> list[dict[str, float] | Exception]:
        """The values of every trial, or what its evaluation raised."""
        found: list[dict[str, float] | Exception] = [dict(trial.plan.constants or {}) for trial in trials]
        for name, stack in self.stacks.items():
            task = self.courses[name].task
            with repeatable(self.device):
                every = evaluate_in_lockstep(
                    lambda f, task=task: task.evaluate(f, Part.VALIDATION), stack.logits, len(trials)
                )
            for i, values in enumerate(every):
                before = found[i]
                if not isinstance(before, Exception):
                    found[i] = values if isinstance(values, Exception) else {**before, **values}
        return found

    def _settle(
        self, trials: list[_Trial], target: float, seconds: float, values: list[dict[str, float] | Exception]
    ) -> None:
        """Record and keep what was found, and part with those that have a fault."""
        for stack in self.stacks.values():
            stack.save()
        for trial in trials:
            trial.fraction = target
            trial.seconds += seconds
        with ThreadPoolExecutor(max_workers=KEEPING_THREADS) as pool:
            ended = list(pool.map(_recorded, trials, values))
        for trial, error in zip(trials, ended, strict=True):
            if error is not None:
                self._leave(trial, error)

    def _holds(self, trial: _Trial, act: Callable[[], None]) -> bool:
        """Whether `act` went well; what it raises ends the trial."""
        try:
            act()
        except Exception as error:
            self._leave(trial, error)
            return False
        return True

    def _leave(self, trial: _Trial, how: Mapping[str, Any] | Exception) -> None:
        if trial in self.live:
            self.live.remove(trial)
        self.end(trial.number, how)

    def _facts(self, trial: _Trial) -> dict[str, Any]:
        """As `Facts.record`; a rate and a peak of memory are those of trials that were alone on their device."""
        on_gpu = self.device.type == "cuda"
        return {
            "training_seconds": trial.seconds,
            "tokens_per_second": None,
            "peak_memory": None,
            "gpu": torch.cuda.get_device_name(self.device) if on_gpu else None,
        }


def _recorded(trial: _Trial, values: dict[str, float] | Exception) -> Exception | None:
    """Write a trial's evaluation and checkpoint; what went wrong, if anything did."""
    if trial.fault:
        return Unstable(trial.fault)
    if isinstance(values, Exception):
        return values
    try:
        trial.supervisor.record(trial.fraction, values, trial.seconds)
        trial.supervisor.check_fence()
        trial.keep()
    except Exception as error:  # handed to the one who ends trials
        return error
    return None


def _folded(plan: Plan, task: Task) -> LanguageModel:
    model = build_entry(plan, task)
    refusal = why_not_folded(model)
    if refusal is not None:
        raise ConfigError(f"these trials cannot be trained together: {refusal}; train them one by one")
    return fold(cast(LanguageModel, model)).to(plan.device)


def _course(plan: Plan, task: Task, tokens: int, threads: int) -> Course:
    sequences, steps = steps_of(task, plan.training, tokens)
    return Course(task, sequences, steps, half_precision(plan.training, plan.device), plan.graphs, threads)
