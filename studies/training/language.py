"""From a trial's configuration to a trial of language models, and from its checkpoint back to a model."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from torch import Tensor

from archsearch.dsl import Rule
from archsearch.errors import CheckpointError
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.models import counts
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.studies.tasks.task import Task
from archsearch.studies.training.checkpoint import Checkpoint, read_checkpoint
from archsearch.studies.training.config import TrialConfig, choose_device, data_hashes, read_rule, task_tokens
from archsearch.studies.training.trial import Entry, Plan
from archsearch.typed_data import to_plain

COUNTS = ("parameters", "flops_per_token", "state_bytes")
"""Values of a trial that are known without training."""


def counted(rule: Rule, model: Model, layer: Layer | None, task: Task) -> dict[str, float]:
    """The COUNTS of the model of `task`, exact, without building it. An ArchsearchError if there is no such model."""
    sizes = (rule, model, layer)
    return {
        "parameters": counts.parameters(*sizes, task.vocabulary),
        "flops_per_token": counts.flops_per_token(*sizes, task.vocabulary, task.length),
        "state_bytes": counts.state_bytes(*sizes, task.length),
    }


def build_model(config: TrialConfig, rule: Rule, vocabulary: int) -> LanguageModel:
    """The untrained model of a trial; its values depend on torch's seed."""
    return LanguageModel(
        rule,
        config.model,
        config.layer,
        vocabulary,
        backend=config.backend,
        chunk_size=config.chunk_size,
        memory=config.memory,
    )


def plan_trial(
    config: TrialConfig, tasks: Mapping[str, Task] | None = None, constants: Mapping[str, float] | None = None
) -> Plan:
    """The plan of a trial. tasks: built before, where several trials share them. constants: see `Plan`."""
    rule = read_rule(config.rule)
    built = config.tasks.build() if tasks is None else tasks
    tokens = task_tokens(config.tasks, config.budget)
    return Plan(
        entries=[Entry(built[name], number) for name, number in tokens.items()],
        build=lambda task: build_model(config, rule, task.vocabulary),
        training=config.training,
        seed=config.seed,
        device=choose_device(config.device),
        evaluations=config.evaluations,
        identity={
            "config": to_plain(replace(config, directory=None, graphs=False)),
            "rule_hash": rule.hash,
            "data": data_hashes(built),
        },
        constants=constants,
        graphs=config.graphs,
    )


def load_model(config: TrialConfig, checkpoints: Path, task: str, vocabulary: int) -> LanguageModel:
    """The model that a trial trained for `task`, from its newest checkpoint, on the CPU, ready to evaluate.

    CheckpointError if there is none, or if it is of another model.
    """
    checkpoint = read_checkpoint(checkpoints)
    if checkpoint is None:
        raise CheckpointError(f"{checkpoints} holds no checkpoint: train the trial first")
    model = build_model(config, read_rule(config.rule), vocabulary)
    weights = model_weights(checkpoint, task)
    expected = cast(Mapping[str, Tensor], model.state_dict())
    for name in {**expected, **weights}:
        if name not in weights or name not in expected or weights[name].shape != expected[name].shape:
            raise CheckpointError(f"the checkpoint in {checkpoints} is of another model: it differs in {name}")
    model.load_state_dict(weights)
    return model.eval()


def model_weights(checkpoint: Checkpoint, task: str) -> dict[str, Tensor]:
    """Parameters and buffers of the model of `task`, by name. CheckpointError if the trial has no such task."""
    prefix = f"{task}/model/"
    weights = {name.removeprefix(prefix): t for name, t in checkpoint.tensors.items() if name.startswith(prefix)}
    if not weights:
        known = sorted({name.split("/")[0] for name in checkpoint.tensors})
        raise CheckpointError(f"the checkpoint must hold a model of task {task!r}; it has {', '.join(known)}")
    return weights
