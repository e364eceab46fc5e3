"""One trial: a model for each task, trained side by side by fractions of their budgets, with checkpoints in between."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from archsearch.errors import CheckpointError, ConfigError
from archsearch.spaces.options import Training
from archsearch.studies.tasks.task import Part, Task
from archsearch.studies.training.card import training_on
from archsearch.studies.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from archsearch.studies.training.graph import check_graphs
from archsearch.studies.training.parallel import ParallelRun, Ranks, check_together
from archsearch.studies.training.randomness import derive_seed
from archsearch.studies.training.run import INITIALISATION, Run, Watch, typed_memory_errors
from archsearch.studies.training.sharding import ShardedRun

ModelBuilder = Callable[[Task], nn.Module]
"""A model for a task: tokens [B, T] int64 to logits [B, T, task.vocabulary]. Drawn from torch's seeded generator."""


class Supervisor(Protocol):
    """Who keeps the files of a trial and decides whether it goes on; the worker of a study, or the trial alone."""

    @property
    def rung_fractions(self) -> Sequence[float]:
        """Fractions of the budget at which there must be an evaluation, the last one 1."""
        ...

    def check_fence(self) -> None:
        """Called before each write; raises if another attempt owns the trial now."""
        ...

    def record(self, fraction: float, values: Mapping[str, float], seconds: float) -> None:
        """An evaluation at `fraction`, after `seconds` of training."""
        ...

    def goes_on(self, fraction: float) -> bool:
        """Whether to train beyond `fraction`; may wait for a decision. False ends the trial."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A task and the tokens to train on it."""

    task: Task
    tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All that determines a trial's values.

    entries: at least one. evaluations: how many, evenly spaced, besides those at the rungs. identity: plain data that a
    checkpoint must agree with to be gone on from. constants: values known without training, part of every record.
    graphs: see `Run`; values do not depend on it. part: which held-out data evaluations read; of the test data the
    cost of every document is a fact of the trial too. ranks: this process among those that train the trial; None is
    one process.
    """

    entries: Sequence[Entry]
    build: ModelBuilder
    training: Training
    seed: int
    device: torch.device
    evaluations: int = 4
    identity: Mapping[str, Any] | None = None
    constants: Mapping[str, float] | None = None
    graphs: bool = False
    part: Part = Part.VALIDATION
    ranks: Ranks | None = None

    def __post_init__(self) -> None:
        """Refuse graphs where there are none, before anything is written."""
        check_graphs(self.device, graphs=self.graphs)

    @property
    def total_tokens(self) -> int:
        """The budgets of all tasks."""
        return sum(entry.tokens for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a trial measured besides its values.

    seconds: of training. compiling: seconds before it, in this attempt. tokens: trained on, in this and earlier
    attempts. documents: [name, bytes, bits] of each document that was scored, by task.
    """

    seconds: float
    compiling: float
    tokens: int
    peak_memory: int | None
    gpu: str | None
    documents: Mapping[str, list[list[Any]]]

    def record(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **({"documents": dict(self.documents)} if self.documents else {}),
            "training_seconds": self.seconds,
            "compiling_seconds": self.compiling,
            "tokens_per_second": self.tokens / self.seconds if self.seconds else None,
            "peak_memory": self.peak_memory,
            "gpu": self.gpu,
        }


def train_trial(plan: Plan, checkpoints: Path, supervisor: Supervisor, watch: Watch | None = None) -> dict[str, Any]:
    """Train from the newest checkpoint in `checkpoints` to the end, or to a stop of the supervisor's; facts of the
    trial.

    After each evaluation: record, checkpoint, and the question whether to go on; that question once more at the start.
    An evaluation that no step would precede is left out, unless it is due at a rung.
    Errors pass: Unstable, torch.OutOfMemoryError, MemoryError, CheckpointError, and what the supervisor raises.
    """
    trial = _Trial(plan, checkpoints)
    trial.resume()
    trial.prepare()
    if plan.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(plan.device)
    due = evaluation_grid(1, supervisor.rung_fractions)
    for fraction in evaluation_grid(plan.evaluations, supervisor.rung_fractions):
        if fraction <= trial.fraction or not (fraction in due or trial.steps_before(fraction)):
            continue
        if not supervisor.goes_on(trial.fraction):
            break
        trial.advance(fraction, watch)
        supervisor.record(fraction, trial.evaluate(), trial.seconds)
        supervisor.check_fence()
        trial.keep()
    return trial.facts().record()


@dataclass(frozen=True, slots=True)
class State:
    """A trial between two steps. fraction: of its budget. seconds: of training. steps, tensors: of each task's run."""

    fraction: float
    seconds: float
    steps: Mapping[str, int]
    tensors: Mapping[str, Mapping[str, Tensor]]


def write_trial(plan: Plan, checkpoints: Path, state: State) -> None:
    """Keep a state as the newest checkpoint; of a trial that is over without the optimiser's moments, two thirds of it,
    which nothing reads any more. CheckpointError if the disk is full.
    """
    tensors = {
        f"{task}/{name}": tensor
        for task, own in state.tensors.items()
        for name, tensor in own.items()
        if state.fraction < 1 or not name.startswith("optimiser/")
    }
    record = {
        "identity": plan.identity,
        "fraction": state.fraction,
        "seconds": state.seconds,
        "steps": dict(state.steps),
        "data": {entry.task.name: entry.task.data_hash for entry in plan.entries},
        "versions": {"torch": str(torch.__version__)},
    }
    tokens = max(1, round(state.fraction * plan.total_tokens))
    write_checkpoint(checkpoints, Checkpoint(tokens, tensors, record))


def read_trial(plan: Plan, checkpoints: Path) -> State | None:
    """The newest state that was kept; None if there is none. CheckpointError if it is of another trial."""
    kept = read_checkpoint(checkpoints)
    if kept is None:
        return None
    if kept.record["identity"] != plan.identity:
        raise CheckpointError(
            f"the checkpoint in {checkpoints} is of another trial: its options are not those given;"
            " choose another directory"
        )
    tensors: dict[str, Mapping[str, Tensor]] = {}
    for entry in plan.entries:
        prefix = f"{entry.task.name}/"
        tensors[entry.task.name] = {
            name.removeprefix(prefix): tensor for name, tensor in kept.tensors.items() if name.startswith(prefix)
        }
    steps = cast(Mapping[str, int], kept.record["steps"])
    return State(float(kept.record["fraction"]), float(kept.record["seconds"]), steps, tensors)


def build_entry(plan: Plan, task: Task) -> nn.Module:
    """The model of a task on the CPU, initialised from the trial's seed alone."""
    cuda = [plan.device] if plan.device.type == "cuda" else []
    with torch.random.fork_rng(cuda), typed_memory_errors():
        torch.manual_seed(derive_seed(plan.seed, INITIALISATION))
        return plan.build(task)


def evaluation_grid(evaluations: int, rungs: Sequence[float]) -> list[float]:
    """The fractions to evaluate at, rising, ending with 1: evenly spaced ones and the rungs."""
    even = [i / evaluations for i in range(1, evaluations)]
    fractions = {round(fraction, 9) for fraction in (*even, *rungs, 1.0)}
    if not all(0 < fraction <= 1 for fraction in fractions):
        raise ConfigError(f"fractions of a budget must be in (0, 1]; got {sorted(fractions)}")
    return sorted(fractions)


class _Trial:
    """The runs of a trial and how far they have come."""

    def __init__(self, plan: Plan, checkpoints: Path) -> None:
        self.plan = plan
        self.checkpoints = checkpoints
        self.fraction = 0.0
        self.seconds, self.compiling = 0.0, 0.0
        self.runs = [_build_run(plan, entry) for entry in plan.entries]

    def resume(self) -> None:
        """Go back to the newest checkpoint, if there is one."""
        kept = read_trial(self.plan, self.checkpoints)
        if self.plan.ranks is not None:
            check_together(self.plan.ranks, 0.0 if kept is None else kept.fraction)
        if kept is None:
            return
        for run in self.runs:
            run.restore(kept.tensors[run.task.name], kept.steps[run.task.name])
        self.fraction, self.seconds = kept.fraction, kept.seconds

    def prepare(self) -> None:
        """Compile what one process needs, before the seconds of training begin; several compile as they go."""
        start = time.perf_counter()
        if self.plan.ranks is None:
            with training_on(self.plan.device):
                for run in self.runs:
                    run.prepare()
        self.compiling = time.perf_counter() - start

    def steps_before(self, fraction: float) -> bool:
        """Whether any run has a step to make until `fraction`: where none has, its values are already known."""
        return any(run.step < round(fraction * run.steps) for run in self.runs)

    def advance(self, fraction: float, watch: Watch | None) -> None:
        """Train every run until `fraction`."""
        start = time.perf_counter()
        with training_on(self.plan.device):
            for run in self.runs:
                run.advance(fraction, watch)
        self.fraction = fraction
        self.seconds += time.perf_counter() - start

    def evaluate(self) -> dict[str, float]:
        """The values of all tasks, and the constants."""
        values = dict(self.plan.constants or {})
        with training_on(self.plan.device):
            for run in self.runs:
                values |= run.evaluate(self.plan.part)
        return values

    def keep(self) -> None:
        """Write a checkpoint, of several processes the first; none goes on before it is written."""
        ranks = self.plan.ranks
        steps = {run.task.name: run.step for run in self.runs}
        tensors = {run.task.name: run.tensors() for run in self.runs}
        if ranks is None or ranks.is_first:
            write_trial(self.plan, self.checkpoints, State(self.fraction, self.seconds, steps, tensors))
        if ranks is not None:
            ranks.wait()

    def facts(self) -> Facts:
        device = self.plan.device
        on_gpu = device.type == "cuda"
        return Facts(
            seconds=self.seconds,
            compiling=self.compiling,
            tokens=sum(run.tokens for run in self.runs),
            peak_memory=torch.cuda.max_memory_allocated(device) if on_gpu else None,
            gpu=torch.cuda.get_device_name(device) if on_gpu else None,
            documents=self.documents() if self.plan.part is Part.TEST else {},
        )

    def documents(self) -> dict[str, list[list[Any]]]:
        """[name, bytes, bits] of every held-out document, by task; tasks without documents are left out."""
        scored = {run.task.name: run.score_documents(self.plan.part) for run in self.runs}
        return {task: [[d.name, d.size, d.bits] for d in found] for task, found in scored.items() if found}


def _build_run(plan: Plan, entry: Entry) -> Run:
    """The run of an entry from its first step."""
    model = build_entry(plan, entry.task)
    given = (entry.task, model, plan.training, entry.tokens, plan.seed, plan.device)
    if plan.ranks is None:
        return Run(*given, graphs=plan.graphs)
    shared = ShardedRun if plan.ranks.shard else ParallelRun
    return shared(plan.ranks, *given, graphs=plan.graphs)
