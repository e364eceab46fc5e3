"""Real SIGKILLs of drivers and workers on Ray: nothing is lost, nothing runs twice, every value is the unkilled
study's.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from archsearch.studies import records
from archsearch.studies.directory import StudyDirectory

TRIALS = 10


@contextlib.contextmanager
def drive(toy: ModuleType, directory: Path, *options: str) -> Generator["subprocess.Popen[str]"]:
    """A driver in a process of its own, killed at the end of the block if it still runs."""
    command = [sys.executable, "-W", "error", str(toy.__file__), str(directory), "--trials", str(TRIALS), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(toy: ModuleType, directory: Path, *options: str) -> None:
    with drive(toy, directory, *options) as process:
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output


def rows(directory: Path) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for number, trial in StudyDirectory(directory).trials().items():
        proposal, result = trial.proposal(), trial.result()
        assert proposal is not None and result is not None, f"trial {number} never ended"
        found.append((number, proposal["choices"], result.outcome, result.tokens, dict(result.values)))
    return found


def check_whole(toy: ModuleType, directory: Path) -> None:
    """Every trial is in a final state that agrees with its file, once, with the value that its point has."""
    storage = JournalStorage(JournalFileBackend(str(directory / "optuna.journal")))
    trials = optuna.load_study(study_name=None, storage=storage).trials
    assert all(trial.state.is_finished() for trial in trials)
    assert [trial.number for trial in trials] == [row[0] for row in rows(directory)]
    for (_, choices, outcome, tokens, values), trial in zip(rows(directory), trials, strict=True):
        if outcome.value != "duplicate":
            assert values["loss"] == exact(toy, choices, round(tokens / 1600 * toy.STEPS))
        assert trial.user_attrs["outcome"] == outcome.value
        assert outcome.value != "complete" or (trial.values == [values["loss"], values["cost"]] and tokens == 1600)
    decided = [(line["trial"], line["rung"]) for line in records.read_lines(directory / "rungs.jsonl")]
    assert len(set(decided)) == len(decided)
    assert sum(trial.user_attrs["origin"] == "proposal" for trial in trials if trial.state.name != "FAIL") == TRIALS


def exact(toy: ModuleType, choices: dict[str, Any], steps: int) -> float:
    total = 0.0
    for step in range(steps):
        total += toy.quality(choices) * (1.1**step)
    return total


def kill_a_worker(directory: Path, draw: random.Random) -> None:
    """SIGKILL the process of one unfinished trial, if there is one."""
    study = StudyDirectory(directory)
    files = [t.path / "pid" for t in study.trials().values() if t.result() is None and (t.path / "pid").exists()]
    pids = [pid for file in files if is_worker(pid := int(file.read_text()))]
    if pids:
        os.kill(draw.choice(pids), signal.SIGKILL)


def is_worker(pid: int) -> bool:
    """Whether the process still is one of Ray's workers: numbers are used again."""
    try:
        return b"ray::_Worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture(scope="module")
def whole(toy: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """The study of one slot that nobody killed."""
    directory = tmp_path_factory.mktemp("whole") / "study"
    finish(toy, directory, "--slots", "1")
    check_whole(toy, directory)
    return rows(directory)


def test_a_killed_study_of_one_slot_ends_exactly_as_the_unkilled_one(
    toy: ModuleType, whole: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    draw = random.Random(1)
    for _ in range(5):
        kill_after(toy, tmp_path / "study", draw, "--slots", "1", "--pause", "0.05")
    finish(toy, tmp_path / "study", "--slots", "1")
    check_whole(toy, tmp_path / "study")
    assert rows(tmp_path / "study") == whole


def test_drivers_and_workers_killed_at_random_lose_nothing(toy: ModuleType, tmp_path: Path) -> None:
    draw = random.Random(2)
    for _ in range(5):
        with drive(toy, tmp_path / "study", "--pause", "0.1") as process:
            await_trials(tmp_path / "study", process)
            time.sleep(draw.uniform(0.0, 1.0))
            kill_a_worker(tmp_path / "study", draw)
            time.sleep(draw.uniform(0.0, 1.5))
    finish(toy, tmp_path / "study")
    check_whole(toy, tmp_path / "study")


def kill_after(toy: ModuleType, directory: Path, draw: random.Random, *options: str) -> None:
    with drive(toy, directory, *options) as process:
        await_trials(directory, process)
        time.sleep(draw.uniform(0.0, 2.0))


def await_trials(directory: Path, process: "subprocess.Popen[str]") -> None:
    """Wait until the driver has its workers: a new fence, or the end."""
    fences = sorted(directory.glob("trials/*/attempt.json"))
    stamps = {path: path.stat().st_mtime_ns for path in fences}
    while process.poll() is None:
        if any(stamps.get(p) != p.stat().st_mtime_ns for p in directory.glob("trials/*/attempt.json")):
            return
        time.sleep(0.02)


def test_a_driver_killed_between_two_writes_is_taken_up(
    toy: ModuleType, whole: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    for fault in (3, 8, 14):
        with drive(toy, tmp_path / "study", "--slots", "1", "--die-at-write", str(fault)) as process:
            process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL
    finish(toy, tmp_path / "study", "--slots", "1")
    check_whole(toy, tmp_path / "study")
    assert rows(tmp_path / "study") == whole


def test_a_second_driver_leaves_at_once(toy: ModuleType, tmp_path: Path) -> None:
    with drive(toy, tmp_path / "study", "--pause", "0.1") as first:
        await_trials(tmp_path / "study", first)
        with drive(toy, tmp_path / "study") as second:
            output, _ = second.communicate(timeout=120)
        assert second.returncode == 3
        holder = f"{tmp_path / 'study'} is held by process {first.pid} on "
        assert output.strip().startswith(f"StudyLockedError: a study has one driver at a time; {holder}")
        output, _ = first.communicate(timeout=300)
    assert first.returncode == 0, output
    check_whole(toy, tmp_path / "study")


def test_an_interrupted_driver_ends_cleanly_and_resumes(toy: ModuleType, tmp_path: Path) -> None:
    with drive(toy, tmp_path / "study", "--pause", "0.1") as process:
        await_trials(tmp_path / "study", process)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    assert process.returncode != 0 and "KeyboardInterrupt" in output.splitlines()[-1]
    finish(toy, tmp_path / "study")
    check_whole(toy, tmp_path / "study")
