"""A study whose trials are arithmetic: cheap, exact, resumable. `python toy_study.py DIRECTORY [--trials N] ...`
drives it.

Imported by the tests and run as a process of its own by the kill tests.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archsearch.errors import ArchsearchError, ClusterLostError
from archsearch.holes import Choose, Integer, OneOf, Uniform
from archsearch.studies.design.plan import Plan
from archsearch.studies.engine.limits import Limits, Patience
from archsearch.studies.engine.session import carry_out
from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.search.rungs import RungOptions
from archsearch.studies.search.samplers import SamplerOptions
from archsearch.studies.tasks.direction import Direction
from archsearch.studies.workers.clerk import Clerk
from archsearch.studies.workers.executor import Executor, Resources

STEPS = 16
PATIENCE = Patience(poll=0.01, back_off=0.02, longest_back_off=0.2)


@dataclass(frozen=True)
class ToyPoint:
    """A kind and a number."""

    choices: Mapping[str, Any]

    @property
    def variant_hash(self) -> str:
        return hashlib.sha256(json.dumps(self.choices, sort_keys=True).encode()).hexdigest()

    def record(self) -> dict[str, object]:
        return {"choices": dict(self.choices)}


def resolve(choose: Choose) -> ToyPoint:
    kind = choose("kind", OneOf(("up", "down"), (1, 2)))
    name = "order" if kind == "up" else "rate"
    hole = Integer(1, 8) if kind == "up" else Uniform(0.01, 1.0, log=True)
    return ToyPoint({"kind": kind, f"kind={kind}/{name}": choose(f"kind={kind}/{name}", hole)})


def resolve_finely(choose: Choose) -> ToyPoint:
    """The same with numbers that hardly repeat, for studies of a thousand trials."""
    kind = choose("kind", OneOf(("up", "down"), (1, 2)))
    scale = float(choose(f"kind={kind}/scale", Uniform(0.5, 2.0, log=False)))
    rate = scale * float(choose(f"kind={kind}/rate", Uniform(0.01, 1.0, log=True)))
    return ToyPoint({"kind": kind, "kind=down/rate": rate})


def suggest(trial: Any) -> Choose:
    def choose(path: str, hole: Any) -> Any:
        if isinstance(hole, OneOf):
            return trial.suggest_categorical(path, hole.labels)
        if isinstance(hole, Integer):
            return trial.suggest_int(path, hole.low, hole.high)
        return trial.suggest_float(path, hole.low, hole.high, log=hole.log)

    return choose


def quality(choices: Mapping[str, Any]) -> float:
    return float(choices.get("kind=up/order", 0)) / 8 or float(choices["kind=down/rate"])


class ToyBody:
    """Adds up a number a step; the sum after all steps is the loss. `pause` seconds a step."""

    def __init__(self, pause: float) -> None:
        self.pause = pause

    def __call__(self, clerk: Clerk) -> Mapping[str, Any]:
        state = records.read_json(clerk.trial.checkpoints / "latest.json") or {"step": 0, "sum": 0.0}
        clerk.trial.checkpoints.mkdir(exist_ok=True)
        step, total = int(str(state["step"])), float(str(state["sum"]))
        choices = clerk.proposal["choices"]
        while clerk.goes_on(step / STEPS) if step else True:
            if step == STEPS:
                break
            time.sleep(self.pause)
            step, total = step + 1, total + quality(choices) * (1.1**step)
            clerk.record(step / STEPS, {"loss": total, "cost": 1 / quality(choices)}, step * self.pause)
            records.write_json(clerk.trial.checkpoints / "latest.json", {"step": step, "sum": total})
        return {"parameters": 7}


def plan(objectives: Mapping[str, Direction] | None = None, **changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "objectives": objectives or {"loss": Direction.MINIMIZE, "cost": Direction.MINIMIZE},
        "rungs": RungOptions(count=3, eta=2, min_peers=3, free_pass_every=5),
        "sampler": SamplerOptions(startup=4),
        "seed": 0,
        "total_tokens": 1600,
        "holes": 3,
        "baselines": {"middle": {"kind": "down", "kind=down/rate": 0.1}},
        "question": {"space": "toy"},
    }
    return Plan(**(fields | changes))


def study(directory: Path, executor: Callable[[], Executor], *, trials: int, **options: Any) -> None:
    carry_out(
        StudyDirectory(directory),
        options.pop("plan", None) or plan(),
        resolve=options.pop("resolve", resolve),
        suggest=suggest,
        executor=executor,
        limits=Limits(trials),
        patience=options.pop("patience", PATIENCE),
        **options,
    )


def _die_at_write(count: int) -> Callable[[Path], None]:
    """A watch that kills this process before its `count`-th durable write."""
    left = [count]

    def watch(path: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return watch


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--ray-address", default=None)
    parser.add_argument("--die-at-write", type=int, default=None)
    parser.add_argument("--patience", type=float, default=None, help="seconds without the head of the cluster")
    options = parser.parse_args()
    # A shell has what it runs in the background ignore interrupts, and whoever is started by that inherits it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from archsearch.studies.workers import ray_head
    from archsearch.studies.workers.ray_executor import RayExecutor

    if options.patience is not None:
        ray_head.PATIENCE = options.patience
    if options.die_at_write is not None:
        records.watch = _die_at_write(options.die_at_write)
    resources = Resources(cpus=1, concurrent=options.slots, ray_address=options.ray_address)
    try:
        study(
            options.directory,
            lambda: RayExecutor(lambda given: ToyBody(options.pause), resources),
            trials=options.trials,
            announce=lambda text: print(f"{time.time():.2f} {text}", flush=True),
        )
    except KeyboardInterrupt:
        print("interrupted")
        return 130
    except ArchsearchError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        if isinstance(error, ClusterLostError):  # as the command line does
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(error.exit_code)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
