"""What one trial needs, as a file holds it: rule, layer, model, tasks with budgets, training, seed, device."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from archsearch.dsl import Rule
from archsearch.dsl.text import parse_rule
from archsearch.errors import ConfigError
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.lookup import find_rule
from archsearch.mixers.models.options import Model
from archsearch.spaces.options import Budget, Training
from archsearch.studies.tasks.registry import Tasks
from archsearch.studies.tasks.task import Task

MOST_THREADS = 1_024

MOST_EVALUATIONS = 1_000
"""Each reads all held-out data and writes a checkpoint."""


@dataclass(frozen=True, slots=True)
class TrialConfig:
    """One trial.

    rule: a name of the zoo, path/to/file.py[:NAME], or a rule's text, Rule(...). layer: null is the layer of the
    rule's paper. tasks: one model is trained for each. budget.tokens: of each task that names no tokens of its own.
    evaluations: how many, evenly spaced, the last one at the end. device: auto is the first GPU, else the CPU.
    backend, chunk_size, memory: of the rule's kernels. threads: of the CPU; one is the fastest for small models, and
    the last bits of a loss depend on their number. graphs: whether steps are replayed as CUDA graphs, which makes small
    models faster, takes more memory and changes no bit. directory: where the trial is kept; null is runs/<name of the
    file>.
    """

    rule: str
    tasks: Tasks
    model: Model = field(default_factory=Model)
    layer: Layer | None = None
    training: Training = field(default_factory=Training)
    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    evaluations: int = 4
    device: Literal["auto", "cpu", "cuda"] = "auto"
    backend: Literal["auto", "reference", "torch", "triton"] = "auto"
    chunk_size: int | None = None
    memory: Literal["fast", "low"] = "fast"
    threads: int = 1
    graphs: bool = False
    directory: Path | None = None

    def __post_init__(self) -> None:
        """Refuse numbers out of range and a task without a budget."""
        if self.seed < 0:
            raise ConfigError(f"seed must be >= 0; got {self.seed}")
        if not 1 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"threads must be in 1 .. {MOST_THREADS:,}; got {self.threads:,}")
        check_evaluations(self.evaluations)
        task_tokens(self.tasks, self.budget)


def check_evaluations(number: int) -> None:
    """Whether a trial may be evaluated so often. ConfigError."""
    if not 1 <= number <= MOST_EVALUATIONS:
        raise ConfigError(f"evaluations must be in 1 .. {MOST_EVALUATIONS:,}; got {number:,}")


def task_tokens(tasks: Tasks, budget: Budget) -> dict[str, int]:
    """The training tokens of each task chosen. ConfigError where neither the task nor the budget names a number."""
    tokens: dict[str, int] = {}
    for name, options in tasks.chosen.items():
        number = options.tokens or budget.tokens
        if number is None:
            raise ConfigError(f"tasks.{name}.tokens must be a number, or budget.tokens for all tasks; got neither")
        tokens[name] = number
    return tokens


def read_rule(text: str) -> Rule:
    """The rule of a text `Rule(...)`, a name of the zoo, or a file. RuleError in one line."""
    return parse_rule(text) if text.lstrip().startswith("Rule(") else find_rule(text)


def choose_device(name: str) -> torch.device:
    """`auto`, `cpu` or `cuda` as a device. ConfigError for a GPU that is not there."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("device cuda needs a CUDA device; this machine has none; use device auto or cpu")
    return torch.device("cuda", torch.cuda.current_device()) if available and name != "cpu" else torch.device("cpu")


def data_hashes(tasks: Mapping[str, Task]) -> dict[str, str]:
    """The data hash of every task."""
    return {name: task.data_hash for name, task in tasks.items()}
