"""The grid as a study, by the clock."""

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from archsearch.spaces.resolution import suggesting
from archsearch.studies.engine.limits import Limits
from archsearch.studies.engine.session import carry_out
from archsearch.studies.evidence.findings import covered
from archsearch.studies.files.directory import Result, StudyDirectory
from archsearch.studies.throughput.grid import Grid, plan_of, resolve
from archsearch.studies.workers.executor import Resources
from archsearch.studies.workers.local_executor import LocalExecutor

WARM_STEPS = 8
"""Steps of the short study before the clock, which compiles."""
PHASES = ("training", "evaluating", "keeping", "building", "compiling")


class Lent:
    """Workers that go on after a study; whoever lends them closes them."""

    def __init__(self, workers: LocalExecutor) -> None:
        self._workers = workers
        self.start, self.departures, self.kill = workers.start, workers.departures, workers.kill

    @property
    def slots(self) -> int:
        """Of the workers."""
        return self._workers.slots

    def close(self) -> None:
        """Nothing ends."""


def run_grid(grid: Grid, workers: LocalExecutor, where: Path, *, graphs: bool) -> tuple[float, list[Result]]:
    """Seconds from the study's first file to its last, and the results of its trials."""
    directory = StudyDirectory(where)
    began = time.perf_counter()
    carry_out(
        directory,
        plan_of(grid, graphs=graphs),
        resolve=lambda choose: resolve(grid, choose),
        suggest=suggesting,
        executor=lambda: Lent(workers),
        limits=Limits(0),
    )
    seconds = time.perf_counter() - began
    return seconds, [result for trial in directory.trials().values() if (result := trial.result()) is not None]


def measure_study(grid: Grid, device: str, gpus: int, lanes: int, processes: int | None = None) -> dict[str, Any]:
    """The grid as a study: processes started and kernels compiled by a short one, then the clock.

    lanes: trials of one batched model. processes: of a GPU, each with a batched model at a time; None is one for each
    batched model of the grid.
    """
    on_gpu = device == "cuda"
    processes = processes or -(-grid.trials // (lanes * gpus))
    share = 1 / (lanes * processes) if on_gpu else 0.0
    resources = Resources(gpus=share, concurrent=lanes * processes * gpus, workers="local", together=lanes)
    workers = LocalExecutor(resources, devices=gpus)
    room = Path(tempfile.mkdtemp(prefix="throughput-"))
    try:
        began = time.perf_counter()
        workers.warm_up(processes)
        ready = time.perf_counter() - began
        compiling, _ = run_grid(replace(grid, steps=WARM_STEPS), workers, room / "warm", graphs=on_gpu)
        seconds, results = run_grid(grid, workers, room / "grid", graphs=on_gpu)
    finally:
        workers.close()
        shutil.rmtree(room)
    complete = sum(result.outcome.value == "complete" for result in results)
    return {
        "trials": len(results),
        "complete": complete,
        "gpus": gpus if on_gpu else 0,
        "seconds": seconds,
        "trials_per_gpu_hour": complete / seconds * 3600 / gpus,
        "outside the clock": {"start of processes": ready, "short study that compiles": compiling},
        "recall": sorted(result.values.get("recall", 0.0) for result in results),
        "faults": sorted({result.message for result in results if result.message}),
        **_shares(results, seconds),
    }


def _shares(results: list[Result], seconds: float) -> dict[str, Any]:
    """Where the time of the workers went, as shares of the study's; each worker trains one group after another.

    in training: the share of the study's time in which one of them trains at least.
    """
    groups = {(g["process"], g["began"]): g for r in results if (g := (r.details or {}).get("group")) is not None}
    processes = {process for process, _ in groups}
    spent: dict[str, float] = {}
    for group in groups.values():
        for what in PHASES:
            spent[what] = spent.get(what, 0.0) + float(group.get(what, 0.0))
    whole = seconds * max(1, len(processes))
    shares = {what: value / whole for what, value in spent.items()}
    return {
        "workers": len(processes),
        "groups": len(groups),
        "in training": covered([(start, stop) for group in groups.values() for start, stop in group["spans"]])
        / seconds,
        "shares": {**shares, "rest": 1 - sum(shares.values())},
        "of groups": [{what: group.get(what, 0.0) for what in PHASES} for group in groups.values()],
    }
