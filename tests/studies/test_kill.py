"""Real SIGKILLs of drivers, workers and nodes on Ray: nothing is lost, nothing runs twice, every value is the unkilled
study's. `kill_study.py` does the same a hundred times.
"""

import random
import signal
import subprocess
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory

TRIALS = 8
SIZE = ("--trials", str(TRIALS))


@pytest.fixture(scope="module")
def whole(killing: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """The study of one slot that nobody killed."""
    directory = tmp_path_factory.mktemp("whole") / "study"
    killing.finish(directory, *SIZE, "--slots", "1", "--pause", "0")
    killing.check_whole(directory, TRIALS)
    return list(killing.rows(directory))


def test_a_study_killed_ten_times_at_random_ends_exactly_as_the_unkilled_one(
    killing: ModuleType, whole: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    draw = random.Random(3)
    targets = draw.sample(("driver", "worker", "node"), 10, counts=(4, 5, 1))
    havoc = killing.Havoc(draw, kills=len(targets), pause=1.5, targets=targets)
    cluster = killing.LocalCluster()
    try:
        options = [*SIZE, "--slots", "1"]
        killing.torment(tmp_path / "study", havoc, cluster, [*options, "--pause", "0.25", "--patience", "2"])
        cluster.restore()
        killing.finish(tmp_path / "study", *options, "--ray-address", cluster.address, "--pause", "0")
        left = killing.still_there(tmp_path / "study")
    finally:
        cluster.close()
    assert havoc.counts == {"driver": 4, "worker": 5, "node": 1}
    killing.check_whole(tmp_path / "study", TRIALS)
    assert killing.rows(tmp_path / "study") == whole
    assert not left, f"processes {left} outlived the study"


def test_a_driver_whose_cluster_lost_its_head_ends_in_one_line_and_another_cluster_ends_the_study(
    killing: ModuleType, whole: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    options = [*SIZE, "--slots", "1", "--pause", "0"]
    cluster = killing.LocalCluster()
    try:
        slowly = ("--pause", "0.1", "--patience", "1", "--ray-address", cluster.address)
        with killing.drive(tmp_path / "study", *options, *slowly) as process:
            killing.await_trials(tmp_path / "study", process)
            time.sleep(0.5)
            killing.bereave(tmp_path / "study", process, cluster)
        assert process.returncode == 2 and any(
            trial.result() is None for trial in StudyDirectory(tmp_path / "study").trials().values()
        )
        cluster.renew()
        killing.finish(tmp_path / "study", *options, "--ray-address", cluster.address)
    finally:
        cluster.close()
    killing.check_whole(tmp_path / "study", TRIALS)
    assert killing.rows(tmp_path / "study") == whole


def test_drivers_and_workers_killed_at_random_lose_nothing(killing: ModuleType, tmp_path: Path) -> None:
    draw = random.Random(2)
    for _ in range(2):
        with killing.drive(tmp_path / "study", *SIZE, "--pause", "0.1") as process:
            killing.await_trials(tmp_path / "study", process)
            time.sleep(draw.uniform(0.0, 1.0))
            killing.kill_a_worker(tmp_path / "study", draw)
            time.sleep(draw.uniform(0.0, 1.5))
    killing.finish(tmp_path / "study", *SIZE)
    killing.check_whole(tmp_path / "study", TRIALS)


def test_a_driver_killed_between_two_writes_is_taken_up(
    killing: ModuleType, whole: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    for fault in (3, 14):
        with killing.drive(tmp_path / "study", *SIZE, "--slots", "1", "--die-at-write", str(fault)) as process:
            process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL
    killing.finish(tmp_path / "study", *SIZE, "--slots", "1")
    killing.check_whole(tmp_path / "study", TRIALS)
    assert killing.rows(tmp_path / "study") == whole


def test_a_second_driver_leaves_at_once(killing: ModuleType, tmp_path: Path) -> None:
    with killing.drive(tmp_path / "study", *SIZE, "--pause", "0.1") as first:
        killing.await_trials(tmp_path / "study", first)
        with killing.drive(tmp_path / "study", *SIZE) as second:
            output, _ = second.communicate(timeout=120)
        assert second.returncode == 3
        holder = f"{tmp_path / 'study'} is held by process {first.pid} on "
        assert output.strip().startswith(f"StudyLockedError: a study has one driver at a time; {holder}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_driver_told_to_end_ends_cleanly_and_resumes(
    killing: ModuleType, tmp_path: Path, number: signal.Signals
) -> None:
    with killing.drive(tmp_path / "study", *SIZE, "--pause", "0.1") as process:
        killing.await_trials(tmp_path / "study", process)
        time.sleep(0.3)
        process.send_signal(number)
        output = _output(process)
    assert process.returncode == 130 and output.splitlines()[-1] == "interrupted"
    assert "***" not in output, "Ray prints no stack"
    killing.finish(tmp_path / "study", *SIZE)
    killing.check_whole(tmp_path / "study", TRIALS)


def _output(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=120)
    return output


def test_a_study_asked_to_stop_keeps_its_checkpoints_and_goes_on(killing: ModuleType, tmp_path: Path) -> None:
    study = StudyDirectory(tmp_path / "study")
    with killing.drive(study.path, *SIZE, "--slots", "1", "--pause", "0.1") as process:
        killing.await_trials(study.path, process)
        time.sleep(0.5)
        study.ask_to_stop(now=False)
        output = _output(process)
    assert process.returncode == 0, output
    assert not study.stop_asked()
    (left,) = [trial for trial in study.trials().values() if trial.result() is None]
    kept = records.read_json(left.checkpoints / "latest.json") or {}
    assert kept["step"] == len(left.curve()), "the checkpoint is of the last evaluation"
    killing.finish(study.path, *SIZE, "--slots", "1")
    killing.check_whole(study.path, TRIALS)
    assert [m.attempt for m in left.curve()] == [1] * int(str(kept["step"])) + [2] * (
        len(left.curve()) - int(str(kept["step"]))
    )
