"""One trial in one process and the same trial in two: the losses side by side, seconds, and memory.

    python tests/studies/two_gpus.py                  # two GPUs, NCCL
    python tests/studies/two_gpus.py --shard          # the same, and once more with parameters shared out (FSDP2)
    python tests/studies/two_gpus.py --device cpu     # two processes, gloo

Exit code 1 if a loss differs by more than the tolerance.
"""

import argparse
import contextlib
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from archsearch.mixers.models.options import Model
from archsearch.spaces.options import Training
from archsearch.studies.tasks.mqar import MqarOptions
from archsearch.studies.tasks.registry import Tasks
from archsearch.studies.training.config import TrialConfig, read_rule
from archsearch.studies.training.language import counted, plan_trial
from archsearch.studies.training.parallel import First, Other, joined
from archsearch.studies.training.trial import train_trial

TOLERANCE = {"cpu": 1e-4, "cuda": 2e-2}
"""Relative, of a loss; on a GPU products are taken in bfloat16, and batches of another size round otherwise."""

EVALUATIONS = 8


class Notes:
    """Keeps the evaluations."""

    rung_fractions = (1.0,)

    def __init__(self) -> None:
        self.curve: list[dict[str, float]] = []
        self.seconds = 0.0

    def check_fence(self) -> None:
        """Nobody else trains it."""

    def record(self, fraction: float, values: Mapping[str, float], seconds: float) -> None:
        """Keep it."""
        self.curve.append(dict(values))
        self.seconds = seconds

    def goes_on(self, fraction: float) -> bool:
        """Always."""
        return True


def config_of(device: str) -> TrialConfig:
    """The trial: small on the CPU, of a size that fills a GPU otherwise."""
    small = device == "cpu"
    model = Model(width=32, heads=1, layers=1) if small else Model(width=768, heads=6, layers=12)
    task = MqarOptions(length=32, pairs=4, vocabulary=64, evaluation=32, tokens=40_000)
    large = MqarOptions(length=512, pairs=64, vocabulary=8192, evaluation=256, tokens=8_000_000)
    return TrialConfig(
        rule="gated_delta_net",
        tasks=Tasks(mqar=task if small else large),
        model=model,
        training=Training(learning_rate=1e-3, batch_tokens=1024 if small else 65_536),
        evaluations=EVALUATIONS,
        device="cpu" if small else "cuda",
    )


def train(rank: int, world: int, device: str, home: str) -> None:
    """One process's part; the first writes what it found."""
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    config = config_of(device)
    tasks = config.tasks.build()
    known = counted(read_rule(config.rule), config.model, config.layer, next(iter(tasks.values())))
    plan = plan_trial(config, tasks, known)
    notes = Notes()
    with contextlib.ExitStack() as stack:
        supervisor: Notes | First | Other = notes
        if world > 1:
            ranks = stack.enter_context(joined(Path(home) / f"meeting-{world}", rank, world, plan.device))
            supervisor = First(notes, ranks) if ranks.is_first else Other(notes.rung_fractions, ranks)
            plan = replace(plan, ranks=ranks)
        facts = train_trial(plan, Path(home) / f"checkpoints-{world}", supervisor)
    if rank == 0:
        found = {"curve": notes.curve, "seconds": notes.seconds, "peak_memory": facts["peak_memory"]}
        (Path(home) / f"found-{world}.json").write_text(json.dumps(found))


def measured(world: int, device: str, home: str) -> dict[str, list[dict[str, float]] | float]:
    """What a trial of `world` processes found. ChildProcessError if one of them failed."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=train, args=(rank, world, device, home)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise ChildProcessError(f"{world} processes ended with {[process.exitcode for process in processes]}")
    return json.loads((Path(home) / f"found-{world}.json").read_text())


def main() -> int:
    """Train, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    device = parser.parse_args().device
    with tempfile.TemporaryDirectory() as home:
        one, two = (measured(world, device, home) for world in (1, 2))
    worst = 0.0
    for ours, theirs in zip(one["curve"], two["curve"], strict=True):  # type: ignore[arg-type]
        loss, other = ours["recall_loss"], theirs["recall_loss"]
        worst = max(worst, abs(loss - other) / loss)
        print(f"loss {loss:10.6f} in one process   {other:10.6f} in two")
    print(f"largest relative difference {worst:.2e}, at most {TOLERANCE[device]:g}")
    print(f"seconds of training {one['seconds']:.1f} in one process, {two['seconds']:.1f} in two")
    return int(worst > TOLERANCE[device])


if __name__ == "__main__":
    sys.exit(main())
