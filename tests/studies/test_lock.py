"""The lock of a study is its driver's while that lives, and can be taken from one that only the user knows is gone."""

import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from archsearch import cli
from archsearch.errors import StudyError, StudyLockedError
from archsearch.studies import commands
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.lock import driver_lock, is_held, slow_to_leave

COMMAND = "archsearch study resume --force-unlock s"

HEIR = """
import fcntl, json, os, socket, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
json.dump({"pid": os.getpid(), "host": socket.gethostname(), "started": "then"}, file)
file.flush()
child = os.fork()
if child:
    print(os.getpid(), child, flush=True)
    os._exit(0)
os.close(1)
time.sleep(60)
"""
"""A driver that dies while a process that it forked lives on, and the lock with it."""


@contextlib.contextmanager
def _held_elsewhere(path: Path) -> Generator[None]:
    """Held by a process of another machine, as far as anybody can tell."""
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump({"pid": 7, "host": "elsewhere", "started": "then"}, file)
        file.flush()
        yield


def _refusal(path: Path, *, force: bool = False) -> str:
    with pytest.raises(StudyError) as error, driver_lock(path, force=force, command=COMMAND):
        pass
    return str(error.value)


def test_a_lock_of_another_machine_names_the_way_out_and_is_taken_by_force(tmp_path: Path) -> None:
    path = tmp_path / "driver.lock"
    with _held_elsewhere(path):
        assert _refusal(path) == (
            f"a study has one driver at a time; {tmp_path} is held by process 7 on elsewhere since then; "
            f"wait for it or stop it; if that machine is gone, {COMMAND}"
        )
        with driver_lock(path, force=True, command=COMMAND) as lock:
            lock.check()
            assert is_held(path), "the new one"
            assert f"is held by process {os.getpid()} on {socket.gethostname()} since" in _refusal(path)
        assert not is_held(path)
        assert [file.name for file in tmp_path.iterdir()] == ["driver.lock"]


def test_a_living_driver_of_this_machine_keeps_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "driver.lock"
    with driver_lock(path) as lock:
        for force in (False, True):
            assert _refusal(path, force=force).endswith("; wait for it or stop it")
        lock.check()
    with driver_lock(path, force=True):
        assert is_held(path), "force takes what is free too"


def test_a_lock_that_outlives_its_driver_is_told_of_and_taken_by_force(tmp_path: Path) -> None:
    path = tmp_path / "driver.lock"
    said = subprocess.run([sys.executable, "-c", HEIR, path], stdout=subprocess.PIPE, text=True, check=True).stdout
    pid, heir = map(int, said.split())
    try:
        assert _refusal(path) == (
            f"a study has one driver at a time; {tmp_path} is held by process {pid} on {socket.gethostname()} since "
            f"then, which has ended: what it started and left behind holds on; end that, or {COMMAND}"
        )
        with driver_lock(path, force=True):
            assert is_held(path)
    finally:
        os.kill(heir, signal.SIGKILL)


def test_a_file_system_without_locks_is_refused_unless_the_user_vouches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Any, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "driver.lock"
    assert _refusal(path) == (
        f"{tmp_path} must lie on a file system with flock; got ENOLCK; move the study to a local disk, "
        f"or, where no other driver runs, {COMMAND}"
    )
    with driver_lock(path, force=True):
        assert is_held(path)
        assert "ENOLCK" in _refusal(path, force=True), "its holder lives on this machine"
    assert not is_held(path)
    path.write_text(json.dumps({"pid": 7, "host": "elsewhere", "started": "then"}))
    assert is_held(path)


def test_a_driver_whose_study_was_taken_leaves_and_the_other_one_ends_it(
    toy: ModuleType, thread_executor: Any, tmp_path: Path
) -> None:
    study = StudyDirectory(tmp_path / "study")
    held = contextlib.ExitStack()

    def take_over() -> None:
        if len(study.trials()) == 2:
            study.lock.write_text(json.dumps({"pid": 7, "host": "elsewhere", "started": "then"}))
            held.enter_context(driver_lock(study.lock, force=True))

    def drive(**options: Any) -> None:
        toy.study(study.path, lambda: thread_executor(toy.ToyBody(0.001)), trials=4, **options)

    with held, pytest.raises(StudyLockedError) as error:
        drive(on_look=take_over)
    assert f"{study.path} was taken by process {os.getpid()} on {socket.gethostname()} since" in str(error.value)
    drive(force_unlock=True)
    results = [trial.result() for trial in study.trials().values()]
    assert len(results) >= 4 and None not in results


def _slow(path: Path, *, now: bool) -> str:
    return slow_to_leave(path, 31.2, now=now, stop="archsearch study stop --now s", command=COMMAND)


def test_who_is_slow_to_stop_is_told_of_with_what_can_be_done(tmp_path: Path) -> None:
    path = tmp_path / "driver.lock"
    waiting = (
        "was asked to stop 31 s ago: waiting for its trials' next checkpoints, which archsearch study stop --now s"
    )
    with driver_lock(path):
        here = f"process {os.getpid()} on {socket.gethostname()} since"
        assert _slow(path, now=False).startswith(here)
        assert _slow(path, now=False).endswith(f"{waiting} does not wait for")
        assert _slow(path, now=True).endswith(
            f"still waiting for it; kill {os.getpid()} ends it too, and nothing is lost"
        )
    path.write_text(json.dumps({"pid": 7, "host": "elsewhere", "started": "then"}))
    gone = f"if that machine is gone, {COMMAND}"
    assert _slow(path, now=False) == f"process 7 on elsewhere since then {waiting} does not wait for; {gone}"
    with pytest.raises(StudyLockedError) as error:
        _slow(path, now=True)
    assert (
        str(error.value) == f"process 7 on elsewhere since then was asked to stop 31 s ago and does not answer; {gone}"
    )
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    path.write_text(json.dumps({"pid": ended.pid, "host": socket.gethostname(), "started": "then"}))
    with pytest.raises(
        StudyLockedError, match="which has ended: what it started and left behind holds on; end that, or"
    ):
        _slow(path, now=False)


@pytest.mark.parametrize("now", [False, True])
def test_stop_tells_what_it_waits_for(
    toy: ModuleType, thread_executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, now: bool
) -> None:
    study = StudyDirectory(tmp_path / "study")
    toy.study(study.path, lambda: thread_executor(toy.ToyBody(0.0)), trials=1)
    monkeypatch.setattr(commands, "SECONDS_BEFORE_WORDS", 0.05)
    monkeypatch.setattr(commands, "SECONDS_BETWEEN_LOOKS", 0.05)
    with contextlib.ExitStack() as held:
        held.enter_context(_held_elsewhere(study.lock))
        said: list[str] = []

        def note(line: str) -> None:
            said.append(line)
            if "if that machine is gone" in line:
                held.close()  # it stops after all

        monkeypatch.setattr(commands.console, "print", note)
        if now:
            with pytest.raises(
                StudyLockedError, match=r"does not answer; if that machine is gone, archsearch study resume"
            ):
                commands.stop(str(study.path), now=True)
        else:
            commands.stop(str(study.path), now=False)
            assert [line.partition(" ")[0] for line in said] == ["Asked", "process", "Stopped;"]
    assert study.stop_asked(), "the wish stands"


def test_resume_passes_the_users_word_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[bool] = []
    monkeypatch.setattr(commands, "read_study_config", lambda directory, overrides: None)
    monkeypatch.setattr(commands, "_carry_out", lambda config, *, force_unlock: told.append(force_unlock))
    for options in ([], ["--force-unlock"]):
        assert CliRunner().invoke(cli.app, ["study", "resume", *options, str(tmp_path)]).exit_code == 0
    assert told == [False, True]
