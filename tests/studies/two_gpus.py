"""One trial in one process and the same trial in two: the losses side by side, seconds, and memory.

    python tests/studies/two_gpus.py                  # two GPUs, NCCL
    python tests/studies/two_gpus.py --shard          # the same, and once more with parameters shared out (FSDP2)
    python tests/studies/two_gpus.py --device cpu     # two processes, gloo
    python tests/studies/two_gpus.py --tokens 1000000 --evaluations 3     # shorter: a checkpoint is a gigabyte on a GPU

What is known is printed at once. Exit code 1 if a loss differs by more than the tolerance.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import torch

from archsearch.mixers.models.options import Model
from archsearch.spaces.options import Training
from archsearch.studies.tasks.mqar import MqarOptions
from archsearch.studies.tasks.registry import Tasks
from archsearch.studies.training.config import TrialConfig, read_rule
from archsearch.studies.training.language import counted, plan_trial
from archsearch.studies.training.parallel import First, Other, joined
from archsearch.studies.training.run import Run
from archsearch.studies.training.trial import Plan, build_entry, read_trial, train_trial

TOLERANCE = {"cpu": 1e-4, "cuda": 2e-2}
"""Relative, of a loss; on a GPU products are taken in bfloat16, and batches of another size round otherwise."""

TOKENS = {"cpu": 40_000, "cuda": 2_000_000}


class Way(Enum):
    """How a trial is carried."""

    ONE = "one process"
    TWO = "two, averaged gradients"
    SHARDED = "two, shared parameters"

    @property
    def world(self) -> int:
        """Processes."""
        return 1 if self is Way.ONE else 2


@dataclass(frozen=True)
class Found:
    """What a trial found. losses: of the evaluations; peak_memory: bytes of the first process's GPU."""

    losses: Sequence[float]
    seconds: float
    peak_memory: int | None


class Notes:
    """Keeps the evaluations."""

    rung_fractions = (1.0,)

    def __init__(self, title: str) -> None:
        """title: of the lines that are printed; nothing is without one."""
        self.curve: list[dict[str, float]] = []
        self.seconds = 0.0
        self.title = title

    def check_fence(self) -> None:
        """Nobody else trains it."""

    def record(self, fraction: float, values: Mapping[str, float], seconds: float) -> None:
        """Keep it."""
        self.curve.append(dict(values))
        self.seconds = seconds
        if self.title:
            say(f"{self.title}: loss {values['recall_loss']:.6f} at {fraction:.0%}, after {seconds:.1f} s of training")

    def goes_on(self, fraction: float) -> bool:
        """Always."""
        return True


@dataclass(frozen=True)
class Setting:
    """Where the trial runs, how long it is, how often it is evaluated and kept, and where its files are."""

    device: str
    tokens: int
    evaluations: int
    home: str


def config_of(setting: Setting) -> TrialConfig:
    """The trial: small on the CPU, of a size that fills a GPU otherwise."""
    small, tokens = setting.device == "cpu", setting.tokens
    model = Model(width=32, heads=1, layers=1) if small else Model(width=768, heads=6, layers=12)
    task = MqarOptions(length=32, pairs=4, vocabulary=64, evaluation=32, tokens=tokens)
    large = MqarOptions(length=512, pairs=64, vocabulary=8192, evaluation=256, tokens=tokens)
    return TrialConfig(
        rule="gated_delta_net",
        tasks=Tasks(mqar=task if small else large),
        model=model,
        training=Training(learning_rate=1e-3, batch_tokens=1024 if small else 65_536),
        evaluations=setting.evaluations,
        device="cpu" if small else "cuda",
    )


def train(rank: int, way: Way, setting: Setting) -> None:
    """One process's part; the first writes what it found."""
    plan, home = prepared(rank, setting), setting.home
    notes = Notes(way.value if rank == 0 else "")
    with contextlib.ExitStack() as stack:
        supervisor: Notes | First | Other = notes
        if way.world > 1:
            meeting = Path(home) / f"meeting-{way.name}"
            ranks = stack.enter_context(joined(meeting, rank, way.world, plan.device, shard=way is Way.SHARDED))
            supervisor = First(notes, ranks) if ranks.is_first else Other(notes.rung_fractions, ranks)
            plan = replace(plan, ranks=ranks)
        facts = train_trial(plan, checkpoints(way, setting), supervisor)
    if rank == 0:
        found = {"curve": notes.curve, "seconds": notes.seconds, "peak_memory": facts["peak_memory"]}
        (Path(home) / f"found-{way.name}.json").write_text(json.dumps(found))
    os._exit(0)  # threads of collectives that are over at times abort a process that ends in the usual way


def say(text: str) -> None:
    """At once, with the seconds since this process began."""
    print(f"{time.perf_counter() - BEGAN:7.1f} s  {text}", flush=True)


BEGAN = time.perf_counter()


def prepared(rank: int, setting: Setting) -> Plan:
    """The plan of the trial on this process's GPU."""
    torch.set_num_threads(1)
    if setting.device == "cuda":
        torch.cuda.set_device(rank)
    config = config_of(setting)
    tasks = config.tasks.build()
    known = counted(read_rule(config.rule), config.model, config.layer, next(iter(tasks.values())))
    return plan_trial(config, tasks, known)


def checkpoints(way: Way, setting: Setting) -> Path:
    """Where they are."""
    return Path(setting.home) / f"checkpoints-{way.name}"


def reopened(way: Way, setting: Setting) -> float:
    """The loss of the last checkpoint of `way`, opened in this process alone."""
    plan = prepared(0, setting)
    kept = read_trial(plan, checkpoints(way, setting))
    assert kept is not None
    (entry,) = plan.entries
    model = build_entry(plan, entry.task)
    run = Run(entry.task, model, plan.training, entry.tokens, plan.seed, plan.device)
    run.restore(kept.tensors[entry.task.name], kept.steps[entry.task.name])
    return run.evaluate()["recall_loss"]


def measured(way: Way, setting: Setting) -> Found:
    """What a trial found. ChildProcessError if one of its processes failed."""
    home = setting.home
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=train, args=(rank, way, setting)) for rank in range(way.world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise ChildProcessError(f"{way.value} ended with {[process.exitcode for process in processes]}")
    found = json.loads((Path(home) / f"found-{way.name}.json").read_text())
    return Found([float(each["recall_loss"]) for each in found["curve"]], found["seconds"], found["peak_memory"])


def report(way: Way, found: Found) -> None:
    """Print what one way took."""
    memory = "" if found.peak_memory is None else f", at most {found.peak_memory / 2**30:.2f} GiB a process"
    say(f"{way.value}: {found.seconds:.1f} s of training{memory}")


def difference(found: Mapping[Way, Found]) -> float:
    """Print the losses side by side; the largest relative difference from one process."""
    say("losses: " + ", ".join(way.value for way in found))
    for losses in zip(*(each.losses for each in found.values()), strict=True):
        print("  " + "   ".join(f"{loss:10.6f}" for loss in losses), flush=True)
    one = found[Way.ONE].losses
    return max(
        abs(loss - other) / loss for each in found.values() for loss, other in zip(one, each.losses, strict=True)
    )


def main() -> int:
    """Train, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--shard", action="store_true", help="share the parameters among the processes as well")
    parser.add_argument("--tokens", type=int, help="of the trial")
    parser.add_argument("--evaluations", type=int, default=8, help="each with a checkpoint")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        setting = Setting(given.device, given.tokens or TOKENS[given.device], given.evaluations, home)
        found: dict[Way, Found] = {}
        worst = 0.0
        for way in list(Way) if given.shard else [Way.ONE, Way.TWO]:
            found[way] = measured(way, setting)
            report(way, found[way])
            if way is not Way.ONE:
                worst = difference(found)
                say(f"largest relative difference until now {worst:.2e}, at most {TOLERANCE[given.device]:g}")
        if given.shard:
            last, alone = found[Way.SHARDED].losses[-1], reopened(Way.SHARDED, setting)
            say(f"the checkpoint of shares, opened in one process: loss {alone:.6f}, {last:.6f} as it was kept")
            worst = max(worst, abs(last - alone) / last)
    say(f"largest relative difference {worst:.2e}, at most {TOLERANCE[given.device]:g}")
    return int(worst > TOLERANCE[given.device])


if __name__ == "__main__":
    sys.exit(main())
