"""Training on a GPU: bfloat16 products, checkpoints that are gone on from, and memory that runs out."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from archsearch.mixers.models.options import Model
from archsearch.mixers.zoo import rules
from archsearch.spaces.options import Budget, Precision, Training
from archsearch.studies.files.outcomes import Outcome, classify
from archsearch.studies.tasks.mqar import MqarOptions
from archsearch.studies.tasks.registry import Tasks
from archsearch.studies.training.config import TrialConfig
from archsearch.studies.training.graph import EAGER, Replayed
from archsearch.studies.training.language import plan_trial
from archsearch.studies.training.run import Run, Step
from archsearch.studies.training.trial import train_trial

pytestmark = pytest.mark.gpu


class Stopping:
    """Lets a trial go on up to a fraction."""

    rung_fractions = (1.0,)

    def __init__(self, stop: float) -> None:
        self.stop = stop
        self.values: list[dict[str, float]] = []

    def check_fence(self) -> None: ...

    def record(self, fraction: float, values: Mapping[str, float], seconds: float) -> None:
        self.values.append(dict(values))

    def goes_on(self, fraction: float) -> bool:
        return fraction < self.stop


def config(rule: str) -> TrialConfig:
    tasks = Tasks(mqar=MqarOptions(length=64, pairs=4, vocabulary=32, evaluation=256))
    model = Model(width=64, heads=1, layers=1, mlp_ratio=0)
    training = Training(learning_rate=1e-2, batch_tokens=4096, warmup=0.05)
    return TrialConfig(rule, tasks, model, training=training, budget=Budget(tokens=2_000_000), device="cuda")


def losses(directory: Path, rule: str, stops: tuple[float, ...]) -> tuple[list[float], dict[str, float]]:
    seen: list[Tensor] = []
    supervisor = Stopping(0)

    def watch(step: Step) -> None:
        seen.append(step.loss)

    for stop in stops:
        supervisor = Stopping(stop)
        train_trial(plan_trial(config(rule)), directory, supervisor, watch)
    return [float(loss) for loss in seen], supervisor.values[-1]


@pytest.mark.parametrize("rule", ["gated_delta_net", "q_delta", "eda"])
def test_a_model_learns_in_bfloat16_and_goes_on_from_its_checkpoint(tmp_path: Path, rule: str) -> None:
    assert rule in rules
    whole, values = losses(tmp_path / "whole", rule, (1.0,))
    pieces, again = losses(tmp_path / "pieces", rule, (0.5, 1.0))
    assert len(whole) == len(pieces) == 489
    assert pieces == whole  # bit for bit, before the interruption and after it
    assert values == again
    assert values["recall"] > 0.9


@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_equal_runs_of_a_hybrid_have_equal_bits(backend: Literal["triton", "torch"]) -> None:
    model = Model(width=64, heads=2, layers=3, pattern=("rule", "attention", "conv"))
    plan = plan_trial(replace(config("gated_delta_net"), backend=backend, model=model))
    task = plan.entries[0].task
    kept: list[dict[str, Tensor]] = []
    for _ in range(2):
        torch.manual_seed(0)
        run = Run(task, plan.build(task), plan.training, 65536, 0, plan.device)
        run.advance(1.0)
        kept.append(run.tensors())
    assert [name for name in kept[0] if not torch.equal(kept[0][name], kept[1][name])] == []


class Greedy(nn.Module):
    """Asks for more memory than there is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 2))

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.empty(2**45, device=tokens.device)


def test_memory_that_runs_out_has_its_own_class() -> None:
    task = MqarOptions(length=8, pairs=1, vocabulary=8).build()
    run = Run(task, Greedy(), Training(precision=Precision.BFLOAT16), 640, 0, torch.device("cuda"))
    with pytest.raises(torch.OutOfMemoryError) as caught:
        run.advance(1.0)
    assert classify(caught.value) is Outcome.OUT_OF_MEMORY


def test_weights_stay_in_float32(tmp_path: Path) -> None:
    plan = plan_trial(config("gated_delta_net"))
    model = plan.build(plan.entries[0].task)
    run = Run(plan.entries[0].task, model, plan.training, 8192, 0, plan.device)
    run.advance(1.0)
    assert all(tensor.dtype is torch.float32 for name, tensor in run.tensors().items() if name.startswith("model/"))


@pytest.mark.parametrize(("rule", "dropout"), [("gated_delta_net", 0.0), ("q_delta", 0.1), ("eda_scalar", 0.0)])
def test_replayed_steps_have_the_bits_of_eager_ones(rule: str, dropout: float) -> None:
    tasks = Tasks(mqar=MqarOptions(length=256, pairs=16, vocabulary=512, evaluation=64))
    training = Training(batch_tokens=64 * 256, warmup=0.25)
    small = TrialConfig(rule, tasks, Model(dropout=dropout), training=training, budget=Budget(tokens=8 * 64 * 256))
    kept: list[tuple[list[Tensor], dict[str, Tensor]]] = []
    for graphs in (False, True):
        plan = plan_trial(replace(small, device="cuda", graphs=graphs))
        torch.manual_seed(0)
        task, losses = plan.entries[0].task, list[Tensor]()
        run = Run(task, plan.build(task), plan.training, 8 * 64 * 256, 0, plan.device, graphs=plan.graphs)

        def watch(step: Step, losses: list[Tensor] = losses) -> None:
            losses.append(step.loss)

        run.advance(0.75, watch)
        run.evaluate()
        run.advance(1.0, watch)
        assert graphs is (isinstance(run._change, Replayed) and run._change.is_captured)
        kept.append((losses, run.tensors()))
    (eager, one), (replayed, other) = kept
    assert len(eager) == len(replayed) == 8 == EAGER + 5
    assert torch.stack(eager).tolist() == torch.stack(replayed).tolist()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def test_an_interrupted_trial_may_go_on_with_graphs(tmp_path: Path) -> None:
    small = replace(config("gated_delta_net"), budget=Budget(tokens=40 * 4096))
    values: list[dict[str, float]] = []
    for directory, modes in (("eager", (False, False)), ("mixed", (False, True))):
        supervisor = Stopping(0)
        for stop, graphs in zip((0.5, 1.0), modes, strict=True):
            supervisor = Stopping(stop)
            train_trial(plan_trial(replace(small, graphs=graphs)), tmp_path / directory, supervisor)
        values.append(supervisor.values[-1])
    assert values[0] == values[1]
