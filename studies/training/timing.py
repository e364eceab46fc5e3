"""The time of a training step as a value of a variant: measured once a study, with the device to itself.

STUDY/timing.jsonl keeps what was measured, a line a structure, device and version.
"""

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch

from archsearch.studies.files import records
from archsearch.studies.tasks.direction import Direction
from archsearch.studies.tasks.task import Batch, Forward, Objective, Part, Task
from archsearch.studies.training.card import alone_on
from archsearch.studies.training.run import Run, steps_of
from archsearch.studies.training.trial import Entry, Plan, build_entry

STEP_TIME = "step_milliseconds"
"""The name of the value: one step of each task's model, alone on the device, without drawing the data."""

WARM_STEPS, BLOCKS, BLOCK_STEPS = 20, 5, 10


def step_milliseconds(plan: Plan, structure: str, file: Path) -> float:
    """The step time of a plan: that of `structure` on such a device in `file`, or measured now and kept there."""
    on_gpu = plan.device.type == "cuda"
    device = torch.cuda.get_device_name(plan.device) if on_gpu else plan.device.type
    key = {"structure": structure, "device": device, "torch": str(torch.__version__)}
    known = _known(file, key)
    if known is not None:
        return known
    with alone_on(plan.device):
        known = _known(file, key)  # another one may have measured it while this one waited
        if known is None:
            known = sum(_measured(plan, entry) for entry in plan.entries)
            records.append_json(file, {**key, STEP_TIME: known})
    return known


def _known(file: Path, key: Mapping[str, str]) -> float | None:
    lines = records.read_lines(file) if file.exists() else []
    found = [line for line in lines if all(line.get(name) == value for name, value in key.items())]
    return float(cast(float, found[-1][STEP_TIME])) if found else None


def _measured(plan: Plan, entry: Entry) -> float:
    """The median over blocks of steps, in milliseconds; compiling comes before."""
    sequences, _ = steps_of(entry.task, plan.training, entry.tokens)
    steps = WARM_STEPS + BLOCKS * BLOCK_STEPS
    task = _OneBatch(entry.task, sequences, plan.device)
    tokens = steps * sequences * task.length
    model = build_entry(plan, entry.task)
    run = Run(task, model, plan.training, tokens, plan.seed, plan.device, graphs=plan.graphs)
    run.advance(WARM_STEPS / steps)
    blocks: list[float] = []
    for block in range(BLOCKS):
        _wait(plan.device)
        began = time.perf_counter()
        run.advance((WARM_STEPS + (block + 1) * BLOCK_STEPS) / steps)
        _wait(plan.device)
        blocks.append((time.perf_counter() - began) / BLOCK_STEPS * 1000)
    return statistics.median(blocks)


class _OneBatch:
    """A task whose every batch is its first one, on the device already."""

    def __init__(self, task: Task, sequences: int, device: torch.device) -> None:
        self.name, self.vocabulary, self.length = task.name, task.vocabulary, task.length
        self.description, self.data_hash = task.description, task.data_hash
        self.objective = Objective(STEP_TIME, Direction.MINIMIZE)
        self._batch = Batch(*(tensor.to(device) for tensor in task.train_batch(0, 0, sequences)))

    def train_batch(self, seed: int, step: int, sequences: int) -> Batch:
        """The batch."""
        return self._batch

    def evaluate(self, forward: Forward, part: Part = Part.VALIDATION) -> dict[str, float]:
        """Nothing is scored."""
        return {}

    def baselines(self, part: Part = Part.VALIDATION) -> Mapping[str, float]:
        """None."""
        return {}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
