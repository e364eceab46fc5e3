"""Trials of one structure from their checkpoints to their ends, trained as one batched model by fractions of budgets.

Each keeps what it keeps when it trains alone: its checkpoints, its evaluations, its stops and its faults.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from archsearch.errors import ConfigError
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.spaces.options import Training
from archsearch.studies.files.outcomes import Unstable
from archsearch.studies.tasks.task import Documented, Forward, Part, Task
from archsearch.studies.training.card import training_on
from archsearch.studies.training.randomness import repeatable
from archsearch.studies.training.run import half_precision, steps_of
from archsearch.studies.training.together.folding import fold, why_not_folded
from archsearch.studies.training.together.kept import KEPT, Key
from archsearch.studies.training.together.lane import Lane
from archsearch.studies.training.together.lockstep import evaluate_in_lockstep
from archsearch.studies.training.together.rows import Layout
from archsearch.studies.training.together.stack import Course, Stack, rows_to_go_on
from archsearch.studies.training.together.times import TRAINING, Times
from archsearch.studies.training.trial import (
    Plan,
    State,
    Supervisor,
    build_entry,
    evaluation_grid,
    read_trial,
    write_trial,
)

T = TypeVar("T")

SHARED_OPTIONS = ("batch_tokens", "precision")
OWN_OPTIONS = frozenset(field.name for field in fields(Training)) - {*SHARED_OPTIONS}
"""Options of training in which the members of a group may differ."""
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

    def __init__(self, number: int, member: Member, first: "_FirstRows") -> None:
        self.number, self.plan, self.supervisor = number, member.plan, member.supervisor
        self.checkpoints = member.checkpoints
        self.fraction, self.seconds = 0.0, 0.0
        self.lanes: dict[str, Lane] = {}
        for entry in self.plan.entries:
            name = entry.task.name
            plan, layout = self.plan, first.layouts[name]
            self.lanes[name] = Lane.fresh(layout, first.row(plan, entry.task), plan.training, plan.seed, plan.device)

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


class _FirstRows:
    """Rows of parameters before the first step; those of one seed are drawn once."""

    def __init__(self, layouts: Mapping[str, Layout]) -> None:
        self.layouts = layouts
        self._drawn: dict[tuple[str, int], Tensor] = {}

    def row(self, plan: Plan, task: Task) -> Tensor:
        """[P] of the model of a task, on the CPU."""
        key = (task.name, plan.seed)
        if key not in self._drawn:
            self._drawn[key] = self.layouts[task.name].row(dict(build_entry(plan, task).named_parameters()))
        return self._drawn[key]


class _Group:
    """The trials that still train, and the batched models of those that trained last."""

    def __init__(self, members: Sequence[Member], end: End, most: int, threads: int) -> None:
        plan = members[0].plan
        self.end, self.most = end, most
        self.device = plan.device
        self.models = {entry.task.name: _folded(plan, entry.task) for entry in plan.entries}
        self.courses = {entry.task.name: _course(plan, entry.task, entry.tokens, threads) for entry in plan.entries}
        first = _FirstRows({name: Layout.of(model) for name, model in self.models.items()})
        self.grid = evaluation_grid(plan.evaluations, members[0].supervisor.rung_fractions)
        self.due = evaluation_grid(1, members[0].supervisor.rung_fractions)
        self.times = Times(len(members))
        self.compiled: set[int] = set()
        self.stacks: dict[str, Stack] = {}
        self.stacked: list[_Trial] = []
        self.live: list[_Trial] = []
        for number, member in enumerate(members):
            trial = _Trial(number, member, first)
            if self._holds(trial, trial.resume):
                self.live.append(trial)

    def run(self) -> None:
        """Round after round: those that are furthest behind train to the next evaluation."""
        try:
            while self.live:
                self._go_on()
        finally:
            self._unstack()

    def _go_on(self) -> None:
        """Bring those that are furthest behind to their next evaluation, or end them."""
        fraction = min(trial.fraction for trial in self.live)
        behind = [trial for trial in self.live if trial.fraction == fraction]
        if fraction >= 1:
            self._finish(behind)
            return
        for trial in behind:
            self._holds(trial, lambda trial=trial: self._ask(trial))
        behind = [trial for trial in self.live if trial.fraction == fraction]
        while behind:
            now, behind = behind[: self.most], behind[self.most :]
            self._round(now, self._next(fraction))

    def _ask(self, trial: _Trial) -> None:
        """End a trial that is told to stop."""
        if not trial.supervisor.goes_on(trial.fraction):
            self._leave(trial, self._facts(trial))

    def _finish(self, trials: list[_Trial]) -> None:
        """End trials that are done; of the test data the cost of every document is a fact of theirs."""
        now = trials[: self.most]
        try:
            documents = self._documents(now)
        except Exception as error:
            self._part_with(now, error)
            return
        for trial, found in zip(now, documents, strict=True):
            self._leave(trial, {**self._facts(trial), **({"documents": found} if found else {})})

    def _documents(self, trials: list[_Trial]) -> list[dict[str, list[list[Any]]]]:
        """[name, bytes, bits] of every held-out document of each trial, by task; tasks without documents left out."""
        found: list[dict[str, list[list[Any]]]] = [{} for _ in trials]
        part = trials[0].plan.part
        for name, course in self.courses.items():
            task = course.task
            if part is not Part.TEST or not isinstance(task, Documented):
                continue
            self._stack(trials)
            every = self._in_lockstep(trials, name, lambda f, task=task, part=part: task.score_documents(f, part))
            for own, scored in zip(found, every, strict=True):
                if isinstance(scored, Exception):
                    raise scored
                own[name] = [[document.name, document.size, document.bits] for document in scored]
        return found

    def _next(self, fraction: float) -> float:
        """The next fraction to evaluate at: at a rung, or after a step at least."""
        for target in self.grid:
            steps = any(round(target * c.steps) > round(fraction * c.steps) for c in self.courses.values())
            if target > fraction and (target in self.due or steps):
                return target
        return 1.0

    def _round(self, trials: list[_Trial], target: float) -> None:
        """Train, evaluate, record and keep; in halves where memory is short."""
        try:
            values, seconds = self._trained(trials, target)
        except (torch.OutOfMemoryError, MemoryError) as error:
            short = error.with_traceback(None)  # its frames hold the memory
        except Exception as error:
            self._let_go()
            self._part_with(trials, error)
            return
        else:
            self._settle(trials, target, seconds, values)
            return
        if self._let_go():
            self._round(trials, target)
            return
        if len(trials) == 1:
            self._part_with(trials, short)
            return
        self.most = -(-len(trials) // 2)
        self._round(trials[: self.most], target)
        self._round(trials[self.most :], target)

    def _trained(self, trials: list[_Trial], target: float) -> tuple[list[dict[str, float] | Exception], float]:
        """The values of every trial at `target`, or what its evaluation raised; seconds of training of one trial."""
        self._stack(trials)
        with training_on(self.device), self.times.spent(TRAINING):
            began = time.perf_counter()
            for name, stack in self.stacks.items():
                stack.advance(round(target * self.courses[name].steps))
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            seconds = (time.perf_counter() - began) / len(trials)
        with training_on(self.device), self.times.spent("evaluating"):
            return self._evaluate(trials), seconds

    def _stack(self, trials: list[_Trial]) -> None:
        """Have the batched models of these trials ready, with all that they need compiled."""
        if trials == self.stacked:
            return
        self._unstack()
        rows = self._rows(len(trials), trials[0].fraction)
        with self.times.spent("building"):
            ready = [self._stack_of(name, trials, rows) for name in self.models]
        self.stacked = trials
        if self.device.type != "cuda":
            return
        if not all(ready) and rows not in self.compiled:
            with training_on(self.device), self.times.spent("compiling"):
                for stack in self.stacks.values():
                    stack.prepare()
                torch.cuda.synchronize(self.device)
        self.compiled.add(rows)

    def _rows(self, lanes: int, fraction: float) -> int:
        """Rows for so many lanes from `fraction` of the budget on."""
        ahead = self.times.seconds(TRAINING) * (1 - fraction) / fraction if fraction else None
        return rows_to_go_on(lanes, self.most, self.compiled, ahead, self.times.seconds("compiling"))

    def _stack_of(self, name: str, trials: list[_Trial], rows: int) -> bool:
        """Have the batched model of a task loaded with these trials; whether it was kept and has all that it needs."""
        model, course = self.models[name], self.courses[name]
        lanes = [trial.lanes[name] for trial in trials]
        stack = KEPT.take(Key.of(model, course, rows, self.device)) if course.graphs else None
        if stack is None:
            KEPT.make_room(self.device)
            self.stacks[name] = Stack(model, lanes, rows, course)
            return False
        stack.load(lanes, course)
        self.stacks[name] = stack
        return True

    def _unstack(self) -> None:
        """Have the batched models no longer; those whose steps were captured are kept for others."""
        for name, stack in self.stacks.items():
            if stack.course.graphs:
                KEPT.put(Key.of(self.models[name], stack.course, stack.rows, self.device), stack)
        self.stacks, self.stacked = {}, []

    def _let_go(self) -> bool:
        """Let the memory of all batched models go; whether any were kept beside those in use."""
        for stack in self.stacks.values():
            stack.close()
        self.stacks, self.stacked = {}, []
        others = KEPT.drop()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return others

    def _evaluate(self, trials: list[_Trial]) -> list[dict[str, float] | Exception]:
        found: list[dict[str, float] | Exception] = [dict(trial.plan.constants or {}) for trial in trials]
        for name, course in self.courses.items():
            task, part = course.task, trials[0].plan.part
            every = self._in_lockstep(trials, name, lambda f, task=task, part=part: task.evaluate(f, part))
            for i, values in enumerate(every):
                before = found[i]
                if not isinstance(before, Exception):
                    found[i] = values if isinstance(values, Exception) else {**before, **values}
        return found

    def _in_lockstep(self, trials: list[_Trial], name: str, ask: Callable[[Forward], T]) -> list[T | Exception]:
        """What `ask` finds of the model of task `name` of every trial."""
        stack = self.stacks[name]
        if stack.course.graphs:
            stack.capture_reading()
        with repeatable(self.device):
            return evaluate_in_lockstep(ask, stack.logits, len(trials))

    def _settle(
        self, trials: list[_Trial], target: float, seconds: float, values: list[dict[str, float] | Exception]
    ) -> None:
        """Record and keep what was found, and part with those that have a fault."""
        for trial in trials:
            trial.fraction = target
            trial.seconds += seconds
        with self.times.spent("keeping"), ThreadPoolExecutor(max_workers=KEEPING_THREADS) as pool:
            for stack in self.stacks.values():
                stack.save()
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

    def _part_with(self, trials: Sequence[_Trial], error: Exception) -> None:
        """End all of them by one exception."""
        for trial in list(trials):
            self._leave(trial, error)

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
            "group": self.times.record(),
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
