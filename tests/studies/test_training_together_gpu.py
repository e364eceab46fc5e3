"""Groups of trials on a GPU: steps replayed as one graph, and the losses of runs of their own."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from archsearch.mixers.models.options import Model
from archsearch.spaces.options import Budget, Precision, Training
from archsearch.studies.tasks.mqar import MqarOptions
from archsearch.studies.tasks.registry import Tasks
from archsearch.studies.training.config import TrialConfig
from archsearch.studies.training.language import plan_trial
from archsearch.studies.training.randomness import repeatable
from archsearch.studies.training.run import Run, steps_of
from archsearch.studies.training.together.folding import fold
from archsearch.studies.training.together.lane import Lane
from archsearch.studies.training.together.rows import Layout
from archsearch.studies.training.together.stack import Course, Stack
from archsearch.studies.training.trial import Plan, build_entry

pytestmark = pytest.mark.gpu

STEPS = 12


def planned(rule: str, seed: int, rate: float, precision: Precision) -> Plan:
    tasks = Tasks(mqar=MqarOptions(length=128, pairs=8, vocabulary=256, evaluation=64))
    training = Training(learning_rate=rate, batch_tokens=16 * 128, warmup=0.25, precision=precision)
    budget = Budget(tokens=STEPS * 16 * 128)
    model = Model(width=64, heads=2, layers=2, mlp_ratio=0)
    return plan_trial(TrialConfig(rule, tasks, model, None, training, budget, seed=seed, device="cuda"))


def stacked(plans: list[Plan], *, graphs: bool) -> Stack:
    task = plans[0].entries[0].task
    model = fold(build_entry(plans[0], task)).to("cuda")  # pyright: ignore[reportArgumentType]
    layout = Layout.of(model)
    rows = [layout.row(dict(build_entry(plan, task).named_parameters())) for plan in plans]
    lanes = [Lane.fresh(layout, row, p.training, p.seed, p.device) for p, row in zip(plans, rows, strict=True)]
    sequences, steps = steps_of(task, plans[0].training, plans[0].entries[0].tokens)
    half = plans[0].training.precision is not Precision.FLOAT32
    return Stack(model, lanes, len(lanes), Course(task, sequences, steps, half=half, graphs=graphs))


def trained(stack: Stack) -> list[Mapping[str, Tensor]]:
    stack.prepare()
    stack.advance(STEPS)
    stack.save()
    return [lane.tensors() for lane in stack.lanes]


@pytest.mark.parametrize("rule", ["gated_delta_net", "kda"])
def test_replayed_steps_of_a_group_have_the_bits_of_eager_ones(rule: str) -> None:
    plans = [planned(rule, seed, 1e-2, Precision.AUTO) for seed in range(3)]
    eager, replayed = (trained(stacked(plans, graphs=graphs)) for graphs in (False, True))
    for one, other in zip(eager, replayed, strict=True):
        assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("rule", ["gated_delta_net", "simple_gla", "kda"])
def test_a_group_on_a_gpu_has_the_weights_of_its_runs(rule: str) -> None:
    plans = [planned(rule, seed, rate, Precision.FLOAT32) for seed, rate in ((0, 1e-3), (0, 3e-3), (1, 1e-3))]
    found = trained(stacked(plans, graphs=True))
    for plan, own in zip(plans, found, strict=True):
        entry = plan.entries[0]
        model = build_entry(plan, entry.task)
        run = Run(entry.task, model, plan.training, entry.tokens, plan.seed, plan.device)
        run.advance(1.0)
        alone = run.tensors()
        assert alone.keys() == own.keys()
        for name in (name for name in alone if name.startswith("model/")):
            difference = (alone[name] - own[name]).norm() / (alone[name].norm() + 1e-6)
            assert difference < 2e-2, name


def test_lanes_of_a_group_do_not_see_each_other() -> None:
    calm = [planned("gated_delta_net", seed, 1e-2, Precision.AUTO) for seed in range(3)]
    wild = replace(calm[1], training=replace(calm[1].training, learning_rate=1e30, clip=0.0))
    alone, beside = trained(stacked(calm, graphs=True)), stacked([calm[0], wild, calm[2]], graphs=True)
    other = trained(beside)
    assert beside.lanes[1].fault and not beside.lanes[0].fault
    for lane in (0, 2):
        assert all(torch.equal(alone[lane][name], other[lane][name]) for name in alone[lane])


@pytest.mark.parametrize("rule", ["gated_delta_net", "kda"])
def test_replayed_passes_of_an_evaluation_have_the_logits_of_eager_ones(rule: str) -> None:
    plans = [planned(rule, seed, 1e-2, Precision.AUTO) for seed in range(3)]
    stack = stacked(plans, graphs=True)
    most = torch.randint(256, (128, 128))
    with repeatable(stack.device):
        eager = stack.logits(most)
    stack.prepare()
    with repeatable(stack.device):
        assert torch.equal(stack.logits(most), eager)
        torch.testing.assert_close(stack.logits(most[:7]), eager[:, :7], rtol=2e-2, atol=2e-2)
    stack.advance(STEPS)
    with repeatable(stack.device):
        moved = stack.logits(most)
        assert not torch.equal(moved, eager)
        stack.close()
        assert torch.equal(stack.logits(most), moved)
