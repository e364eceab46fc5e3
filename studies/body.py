"""What a worker of a study does: the trial's model from its record, trained under the clerk's eyes."""

import functools
import json
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

from archsearch.errors import ArchsearchError
from archsearch.kernels.dispatch import Backend
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.studies.clerk import Clerk
from archsearch.studies.outcomes import Unbuildable
from archsearch.studies.points import Variant, read_variant
from archsearch.studies.tasks.registry import Tasks
from archsearch.studies.tasks.task import Task
from archsearch.studies.training.trial import Entry, Plan, train_trial
from archsearch.studies.training.typed_data import from_plain


class TrainingBody:
    """Trains one model a task, side by side."""

    def __call__(self, clerk: Clerk) -> Mapping[str, Any]:
        """Train the trial; its facts."""
        config = cast(Mapping[str, Any], clerk.plan["config"])
        torch.set_num_threads(int(config["resources"]["cpus"]))
        tasks = built_tasks(json.dumps(config["tasks"]))
        variant = read_variant(clerk.proposal)
        plan = trial_plan(clerk, variant, tasks, backend=cast(Backend, config["backend"]))
        facts = train_trial(plan, clerk.trial.checkpoints, clerk)
        return {**facts, **(plan.constants or {})}


@functools.lru_cache(maxsize=2)
def built_tasks(options: str) -> dict[str, Task]:
    """The tasks of a configuration, given as JSON; kept, since a worker trains many trials on the same data."""
    return from_plain(Tasks, json.loads(options), "the study's tasks").build()


def trial_plan(clerk: Clerk, variant: Variant, tasks: Mapping[str, Task], *, backend: Backend) -> Plan:
    """All that determines the trial's values. Unbuildable if the variant gives no model."""

    def build(task: Task) -> nn.Module:
        return LanguageModel(variant.rule, variant.model, variant.layer, task.vocabulary, backend=backend)

    tokens = {name: int(task["tokens"]) for name, task in clerk.plan["tasks"].items()}
    first = next(iter(tasks.values()))
    return Plan(
        entries=[Entry(task, tokens[name]) for name, task in tasks.items()],
        build=build,
        training=variant.training,
        seed=int(clerk.plan["config"]["seeds"]["search"]),
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        evaluations=int(clerk.plan["config"]["evaluations"]),
        identity={"variant_hash": clerk.proposal["variant_hash"], "tokens": tokens},
        constants=_counts(build, first),
    )


def _counts(build: Any, task: Task) -> dict[str, float]:
    """Size and cost of the model, exact, from one that holds no numbers."""
    try:
        with torch.device("meta"):
            model = build(task)
    except ArchsearchError as error:
        raise Unbuildable(str(error)) from error
    return {
        "parameters": model.parameter_count,
        "flops_per_token": model.flops_per_token(task.length),
        "state_bytes": model.state_bytes,
    }
