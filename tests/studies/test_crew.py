"""Trials that share a worker keep their own files, fences and ends; local processes carry them and may be killed."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from archsearch.errors import ConfigError, StudyError
from archsearch.mixers.models.options import Model
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import CrowdedOut
from archsearch.studies.tasks.mqar import MqarOptions
from archsearch.studies.throughput.__main__ import table
from archsearch.studies.throughput.as_study import measure_study
from archsearch.studies.throughput.grid import Grid, Trial, plan_of
from archsearch.studies.throughput.plain_loop import measure_rule
from archsearch.studies.workers import crew
from archsearch.studies.workers.body import TrainingBody
from archsearch.studies.workers.clerk import Assignment
from archsearch.studies.workers.crew import gathered, work_together
from archsearch.studies.workers.executor import Departure, Resources
from archsearch.studies.workers.local_executor import LocalExecutor, _Worker
from archsearch.studies.workers.node import CACHE

GRID = Grid(
    MqarOptions(length=16, pairs=2, vocabulary=16, evaluation=8),
    Model(width=16, heads=2, layers=1, mlp_ratio=0),
    batch=4,
    steps=6,
    seeds=2,
    names=("delta_net", "simple_gla"),
    rates=(1e-3, 1e-2),
)
BODY = TrainingBody(1)


def study(path: Path, trials: Sequence[Trial], grid: Grid = GRID) -> list[Assignment]:
    directory = StudyDirectory(path)
    directory.write_plan(plan_of(grid, graphs=False).record())
    for number, trial in enumerate(trials):
        directory.trial(number).write_proposal({"variant_hash": trial.variant_hash, **trial.record()})
        directory.trial(number).raise_fence(1)
    return [Assignment(path, number, 1) for number in range(len(trials))]


def four(name: str = "delta_net", grid: Grid = GRID) -> list[Trial]:
    return [Trial(grid, name, rate, seed) for rate in grid.rates for seed in range(2)]


def outcomes(path: Path) -> list[str]:
    results = [trial.result() for trial in StudyDirectory(path).trials().values()]
    return ["" if result is None else result.outcome.value for result in results]


def test_trials_of_one_structure_are_gathered_and_others_are_not(tmp_path: Path) -> None:
    attention = Grid(GRID.task, Model(width=16, heads=2, layers=1, pattern=("attention",)), 4, 6, 2)
    trials = [*four(), *four("simple_gla"), Trial(attention, "kda", 1e-3, 0), Trial(attention, "kda", 1e-3, 1)]
    groups = gathered(study(tmp_path, trials), 3)
    assert [[a.number for a in group] for group in groups] == [[0, 1, 2], [3], [4, 5, 6], [7], [8], [9]]


def test_a_crew_ends_every_trial_of_its_own(tmp_path: Path) -> None:
    assignments = study(tmp_path, [*four(), *four("simple_gla")])
    assert work_together(assignments, BODY)
    assert outcomes(tmp_path) == ["complete"] * 8
    directory = StudyDirectory(tmp_path)
    for number in range(8):
        trial = directory.trial(number)
        result = trial.result()
        assert result is not None and result.details is not None
        assert result.details["group"]["members"] == 4 and "parameters" in result.details
        assert trial.curve()[-1].tokens == GRID.steps * GRID.batch * GRID.task.length
        assert trial.checkpoints.exists()


def test_a_superseded_trial_leaves_without_a_word_and_the_others_go_on(tmp_path: Path) -> None:
    assignments = study(tmp_path, four())
    StudyDirectory(tmp_path).trial(2).raise_fence(2)
    assert not work_together(assignments, BODY)
    assert outcomes(tmp_path) == ["complete", "complete", "", "complete"]


@pytest.mark.parametrize("together", [1, 2])
def test_a_trial_with_its_last_checkpoint_and_no_metrics_was_not_stopped(tmp_path: Path, together: int) -> None:
    work_together(study(tmp_path, four()), BODY)
    for number in range(together):
        trial = StudyDirectory(tmp_path).trial(number)
        (trial.path / "result.json").unlink()
        (trial.path / "metrics-1.jsonl").unlink()
        trial.raise_fence(2)
    work_together([Assignment(tmp_path, number, 2) for number in range(together)], BODY)
    assert outcomes(tmp_path) == ["bug"] * together + ["complete"] * (4 - together)
    result = StudyDirectory(tmp_path).trial(0).result()
    assert result is not None and "has a checkpoint at 384 tokens and no evaluation of it" in result.message


def test_a_trial_that_diverges_is_unstable_and_the_others_are_complete(tmp_path: Path) -> None:
    trials = [Trial(GRID, "delta_net", rate, 0) for rate in (1e-3, 1e30, 1e-2)]
    assert work_together(study(tmp_path, trials), BODY)
    assert outcomes(tmp_path) == ["complete", "unstable", "complete"]


def test_a_variant_that_cannot_be_built_ends_alone(tmp_path: Path) -> None:
    assignments = study(tmp_path, four()[:3])
    broken = StudyDirectory(tmp_path).trial(1)
    record: dict[str, Any] = broken.proposal() or {}
    broken.write_proposal({**record, "model": {**record["model"], "width": 17}})
    assert not work_together(assignments, BODY)
    assert outcomes(tmp_path) == ["complete", "compile_error", "complete"]


def test_memory_that_others_have_is_no_fault_of_a_rule_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(members: Any, end: Any, **_: Any) -> None:
        end(1, torch.OutOfMemoryError("CUDA out of memory"))

    monkeypatch.setattr(crew, "train_together", out_of_memory)
    planned = TrainingBody.planned
    monkeypatch.setattr(TrainingBody, "planned", lambda _, clerk: planned(BODY, clerk))
    monkeypatch.setattr(TrainingBody, "settle_in", lambda *_, **__: None)
    with pytest.raises(CrowdedOut):
        work_together(study(tmp_path, four()), replace(BODY, gpus=0.25))
    assert outcomes(tmp_path) == [""] * 4
    error = torch.OutOfMemoryError("")
    assert BODY.crowded_out(error, alone=False) is error
    assert replace(BODY, gpus=0.25).crowded_out(error, alone=True) is error


def wait_for(executor: LocalExecutor, count: int) -> list[Departure]:
    found: list[Departure] = []
    end = time.monotonic() + 60
    while len(found) < count and time.monotonic() < end:
        found += executor.departures(0.05)
    return found


@pytest.fixture
def executor() -> Any:
    workers = LocalExecutor(Resources(gpus=0.0, workers="local", together=4, concurrent=4))
    yield workers
    workers.close()


@pytest.mark.parametrize(("busy", "sizes"), [((), [2, 2]), ((0,), [4]), ((0, 1), [4])])
def test_a_structure_is_parted_only_among_devices_that_have_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: Sequence[int], sizes: Sequence[int]
) -> None:
    begun: list[int] = []
    workers = LocalExecutor(Resources(gpus=0.125, workers="local"), devices=2)
    monkeypatch.setattr(LocalExecutor, "_load", lambda _, device: 4 * (device in busy))
    monkeypatch.setattr(LocalExecutor, "_begin", lambda _, group: begun.append(len(group)))
    for assignment in study(tmp_path, four()):
        workers.start(assignment)
    workers.departures(0.0)
    assert begun == sizes


def test_a_killed_process_loses_its_trials_and_nothing_else(tmp_path: Path, executor: LocalExecutor) -> None:
    slow = Grid(GRID.task, GRID.model, GRID.batch, 4000, 2, GRID.names, GRID.rates)
    first = study(tmp_path / "slow", four(grid=slow), slow)
    executor.warm_up(1)
    for assignment in first:
        executor.start(assignment)
    executor.departures(0.2)
    (worker,) = executor.processes()
    os.kill(worker, signal.SIGKILL)
    lost = wait_for(executor, 4)
    assert sorted(d.assignment.number for d in lost) == [0, 1, 2, 3]
    assert {d.cause for d in lost} == {"ProcessDied: the worker ended with code -9"}
    for assignment in study(tmp_path / "next", four()):
        executor.start(assignment)
    assert [d.cause for d in wait_for(executor, 4)] == [""] * 4
    assert outcomes(tmp_path / "next") == ["complete"] * 4


def test_a_process_that_died_while_it_had_nothing_to_do_is_replaced(tmp_path: Path, executor: LocalExecutor) -> None:
    executor.warm_up(1)
    (worker,) = executor._idle
    worker.process.kill()
    worker.process.join()
    for assignment in study(tmp_path, four()):
        executor.start(assignment)
    assert [d.cause for d in wait_for(executor, 4)] == [""] * 4
    assert outcomes(tmp_path) == ["complete"] * 4


def test_a_hung_trial_is_killed_and_departs_no_more(tmp_path: Path, executor: LocalExecutor) -> None:
    slow = Grid(GRID.task, GRID.model, GRID.batch, 4000, 2, GRID.names, GRID.rates)
    for assignment in study(tmp_path, four(grid=slow)[:2], slow):
        executor.start(assignment)
    executor.departures(0.1)
    executor.kill(1)
    (lost,) = wait_for(executor, 1)
    assert lost.assignment.number == 0 and lost.cause.startswith("ProcessDied")
    assert executor.slots == min(4, os.cpu_count() or 1)


class Idler:
    """A process that takes what it is sent and does nothing."""

    def kill(self) -> None:
        pass

    def join(self, seconds: float) -> None:
        pass


def test_a_device_whose_trials_have_departed_has_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = LocalExecutor(Resources(gpus=1 / 16, workers="local"), devices=2)
    ends: list[Connection] = []

    def idler(device: int) -> _Worker:
        ours, theirs = Pipe()
        ends.append(theirs)
        return _Worker(Idler(), ours, Pipe()[0], device)

    monkeypatch.setattr(workers, "_new_worker", idler)
    trials = study(tmp_path, [*four(), *four("simple_gla")])

    def begin(some: Sequence[Assignment]) -> None:
        for trial in some:
            workers.start(trial)
        workers._begin_groups()

    begin(trials[:4])
    for worker, end in zip(workers._busy, ends, strict=True):
        worker.ended = {trial.number for trial in worker.group}  # their results are there
        end.send((True, ""))  # the last word, which nobody has looked for
    begin(trials[4:])
    assert [[trial.number for trial in worker.group] for worker in workers._busy] == [[4, 5], [6, 7]]
    workers.close()


def test_the_grid_runs_as_a_study_and_in_a_plain_loop() -> None:
    found = measure_study(GRID, "cpu", 1, 8)
    assert found["complete"] == found["trials"] == GRID.trials == 8
    assert found["shares"]["training"] > 0 and found["shares"]["rest"] >= 0
    measured = {"studies": [found], "peer": {"delta_net": measure_rule(GRID, "delta_net", 1, "cpu")}}
    lines = table(json.loads(json.dumps(measured)))
    assert lines[0].startswith("CPU: 8 of 8 trials in ")
    assert lines[-1].startswith("delta_net in a plain loop: ")


def test_a_plain_loop_whose_time_is_over_says_how_many_trials_it_had() -> None:
    told: list[str] = []
    found = measure_rule(GRID, "delta_net", 3, "cpu", seconds=0.0, tell=told.append)
    assert (found["trials"], found["steps"]) == (1, GRID.steps)
    assert told[-1].startswith("delta_net: trial 1 of 3, ") and len(told) == 3


def test_shares_that_no_process_can_take_are_refused() -> None:
    with pytest.raises(StudyError, match="needs one GPU at most"):
        LocalExecutor(Resources(gpus=2.0), devices=2)
    with pytest.raises(ConfigError) as error:
        Resources(together=0)
    assert str(error.value) == "resources.together must be >= 1; got 0"
    with pytest.raises(ConfigError, match=r"^resources\.ray_address needs resources\.workers ray"):
        Resources(ray_address="auto", workers="local")


def test_an_actor_of_ray_carries_one_crew_after_another(tmp_path: Path) -> None:
    from archsearch.studies.workers.ray_executor import RayExecutor

    crews = RayExecutor(lambda given: TrainingBody(given.cpus), Resources(gpus=0.0), together=2)
    try:
        assignments = study(tmp_path, four())
        for pair in (assignments[:2], assignments[2:]):
            for assignment in pair:
                crews.start(assignment)
            over = crews.departures(60)
            while len(over) < 2:
                over += crews.departures(60)
            assert crews.departures(3) == []  # the actor's last word
            assert [departure.cause for departure in over] == [""] * 2
    finally:
        crews.close()
    assert outcomes(tmp_path) == ["complete"] * 4
    results = [StudyDirectory(tmp_path).trial(number).result() for number in range(4)]
    assert len({(result.details or {})["group"]["process"] for result in results if result is not None}) == 1


def test_kernels_are_kept_on_the_node_unless_another_place_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE, raising=False)
    BODY.settle_in()
    chosen = os.environ[CACHE]
    assert Path(chosen).parent == Path(tempfile.gettempdir())
    monkeypatch.setenv(CACHE, "/somewhere/else")
    BODY.settle_in()
    assert os.environ[CACHE] == "/somewhere/else"
