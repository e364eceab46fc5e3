"""What a worker of a study does: the trial's model from its record, trained under the clerk's eyes."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from archsearch.errors import ArchsearchError
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.models.options import Model
from archsearch.studies.files.directory import StudyDirectory, TrialDirectory
from archsearch.studies.files.outcomes import CrowdedOut, Unbuildable
from archsearch.studies.files.records import read_as_written
from archsearch.studies.tasks.registry import Tasks
from archsearch.studies.tasks.task import Part, Task
from archsearch.studies.training.config import TrialConfig, read_rule
from archsearch.studies.training.language import counted, plan_trial
from archsearch.studies.training.timing import STEP_TIME, step_milliseconds
from archsearch.studies.training.together.structure import structure_of
from archsearch.studies.training.trial import ModelBuilder, Plan, train_trial
from archsearch.studies.training.validity import require_valid
from archsearch.studies.workers.clerk import Clerk
from archsearch.studies.workers.node import keep_kernels_here
from archsearch.typed_data import from_plain


@dataclass(frozen=True, slots=True)
class TrainingBody:
    """Trains one model a task, side by side. threads: of the CPU. gpus: of one trial; 0 trains on the CPU. shard: as
    `Resources` says.
    """

    threads: int
    gpus: float = 0.0
    shard: bool = False

    def __call__(self, clerk: Clerk) -> Mapping[str, Any]:
        """Train the trial; its facts."""
        self.settle_in(alone=clerk.alone)
        try:
            plan, known = self.planned(clerk)
            return {**train_trial(plan, clerk.trial.checkpoints, clerk), **known}
        except torch.OutOfMemoryError as error:
            raise self.crowded_out(error, alone=clerk.alone) from error

    def crowded_out(self, error: Exception, *, alone: bool) -> Exception:
        """What an error of a trial is: running out of memory beside others on a GPU is no fault of its rule yet."""
        if isinstance(error, torch.OutOfMemoryError) and 0 < self.gpus < 1 and not alone:
            return CrowdedOut(str(error).partition("\n")[0])
        return error

    def settle_in(self, trials: int = 1, *, alone: bool = False) -> None:
        """Take the threads and the share of the GPU's memory that so many trials in this process have; alone: all."""
        keep_kernels_here()
        torch.set_num_threads(self.threads)
        if 0 < self.gpus < 1:
            torch.cuda.set_per_process_memory_fraction(1.0 if alone else min(1.0, trials * self.gpus))

    def planned(self, clerk: Clerk) -> tuple[Plan, dict[str, float]]:
        """How the trial is trained, and its sizes and costs. Unbuildable if the variant has none."""
        config = replace(trial_config(clerk.plan, clerk.trial), device="cuda" if self.gpus else "cpu")
        options = json.dumps(clerk.plan["config"]["tasks"])
        tasks = built_tasks(options)
        if clerk.plan["config"].get("checks"):
            require_valid(config.rule, config.layer, StudyDirectory(clerk.trial.path.parents[1]).checks)
        known = dict(_counts(json.dumps({name: clerk.proposal[name] for name in ("rule", "model", "layer")}), options))
        plan = plan_trial(config, tasks, known)
        if STEP_TIME in clerk.plan["objectives"]:
            known[STEP_TIME] = self._step_time(clerk, plan)
            plan = replace(plan, constants=known)
        part = Part(clerk.plan["fixed"].get("part", Part.VALIDATION.value))
        return replace(plan, build=_refusing(plan.build), identity=_identity(clerk), part=part), known

    def _step_time(self, clerk: Clerk, plan: Plan) -> float:
        """Measured with the whole device, though the trial itself may have a share of it."""
        structure = structure_of(clerk.number, clerk.proposal)
        file = clerk.trial.path.parents[1] / "timing.jsonl"
        return step_milliseconds(replace(plan, build=_refusing(plan.build)), structure, file)


def _refusing(build: ModelBuilder) -> ModelBuilder:
    """A builder whose refusals are the variant's fault, not ours."""

    def build_or_refuse(task: Task) -> nn.Module:
        try:
            return build(task)
        except ArchsearchError as error:
            raise Unbuildable(str(error)) from error

    return build_or_refuse


def trial_config(plan: Mapping[str, Any], trial: TrialDirectory) -> TrialConfig:
    """The configuration of one trial of a study, from study.json and trial.json: what `archsearch train` would need.

    DamagedError where one of them lacks a part of it.
    """
    proposal, study = trial.proposal() or {}, trial.path.parents[1]
    with read_as_written(study / "study.json"):
        shared = {name: plan["config"][name] for name in ("tasks", "evaluations", "backend", "graphs")}
    with read_as_written(trial.path / "trial.json"):
        parts = {name: proposal[name] for name in ("rule", "layer", "model", "training", "budget")}
    seed = proposal.get("seed", plan["fixed"]["seed"])
    return from_plain(TrialConfig, {**parts, **shared, "seed": seed}, "the study's files")


def _identity(clerk: Clerk) -> dict[str, Any]:
    """What a checkpoint must agree with; the device is no part of it, since a trial may go on elsewhere."""
    return {"variant_hash": clerk.proposal["variant_hash"], "question": clerk.plan["fixed"]}


@functools.lru_cache(maxsize=2)
def built_tasks(options: str) -> dict[str, Task]:
    """The tasks of a configuration, given as JSON; kept, since a worker trains many trials on the same data."""
    return from_plain(Tasks, json.loads(options), "the study's tasks").build()


@dataclass(frozen=True, slots=True)
class _Variant:
    """What sizes and costs depend on."""

    rule: str
    model: Model
    layer: Layer | None


@functools.lru_cache(maxsize=16)
def _counts(variant: str, tasks: str) -> Mapping[str, float]:
    """Size and cost of the model of the first task, both given as JSON. Unbuildable if the variant gives none."""
    given, task = (
        from_plain(_Variant, json.loads(variant), "the study's files"),
        next(iter(built_tasks(tasks).values())),
    )
    try:
        return counted(read_rule(given.rule), given.model, given.layer, task)
    except ArchsearchError as error:
        raise Unbuildable(str(error)) from error
