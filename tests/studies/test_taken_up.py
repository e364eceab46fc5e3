"""What an earlier driver left is taken up: torn, damaged or missing files, a stale worker, a death before any write."""

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from archsearch.errors import StudyError
from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.workers.clerk import Clerk


@pytest.mark.parametrize("lost", ["trials", "trials/00002", "trials/00002/trial.json", "trials/00004"])
def test_a_trial_whose_files_are_gone_is_not_gone_on_without(run: Any, tmp_path: Path, lost: str) -> None:
    run(trials=4)
    path = tmp_path / "study" / lost
    path.unlink() if path.is_file() else shutil.rmtree(path)
    before = [trial.state for trial in run.told(tmp_path / "study")]
    with pytest.raises(StudyError, match=r"is gone: restore it from a copy of the study$") as error:
        run(trials=6)
    assert str(path) in str(error.value)
    assert [trial.state for trial in run.told(tmp_path / "study")] == before


@pytest.mark.parametrize("line", ["{}", '{"op_code": 4, "worker_id": "x"}', '{"op_code": "x", "worker_id": 1}'])
def test_a_record_of_the_journal_that_means_nothing_is_named(run: Any, tmp_path: Path, line: str) -> None:
    run(trials=2)
    path = tmp_path / "study/optuna.journal"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(records.DamagedError, match=r"optuna.journal must hold JSON objects; .* lacks what was written"):
        run(trials=4)


def test_a_stale_worker_is_shut_out_by_the_fence(run: Any, toy: ModuleType, tmp_path: Path) -> None:
    from archsearch.studies.workers.clerk import Assignment, Superseded

    run(trials=1)
    trial = StudyDirectory(tmp_path / "study").trial(1)
    stale = Clerk(Assignment(tmp_path / "study", 1, 1))
    before = {path.name: path.read_bytes() for path in trial.path.iterdir() if path.is_file()}
    trial.raise_fence(2)
    for write in (
        lambda: stale.record(1.0, {"loss": 0.0, "cost": 0.0}, 1.0),
        lambda: stale.finish(Outcome.COMPLETE, "", {}),
        lambda: Clerk(Assignment(tmp_path / "study", 1, 1)),
    ):
        with pytest.raises(Superseded):
            write()
    after = {path.name: path.read_bytes() for path in trial.path.iterdir() if path.is_file()}
    assert {name for name in after if after[name] != before.get(name)} == {"attempt.json"}
    assert trial.result() is None, "a result of an attempt that was shut out does not count"


@pytest.mark.parametrize("name", ["metrics-1.jsonl", "rungs.jsonl", "optuna.journal"])
def test_a_torn_last_line_loses_nothing(run: Any, tmp_path: Path, name: str) -> None:
    run(trials=5)
    whole = run.summary(tmp_path / "study")
    for path in (tmp_path / "study").rglob(name):
        with open(path, "ab") as file:
            file.write(b'{"torn": ')
    run(trials=5)
    assert run.summary(tmp_path / "study") == whole


class Crash(BaseException):
    pass


@pytest.mark.parametrize("name", ["optuna.journal", "rungs.jsonl", "checks.jsonl"])
def test_a_damaged_last_line_is_named(run: Any, tmp_path: Path, name: str) -> None:
    run(trials=4)
    with open(tmp_path / "study" / name, "ab") as file:
        file.write(b"garbage\n")
    with pytest.raises(records.DamagedError, match=rf"{name} must hold JSON objects; line \d+ is no JSON: restore it"):
        run(trials=4)


@pytest.mark.parametrize("name", ["trial.json", "attempt.json", "result.json", "metrics-1.jsonl"])
def test_a_damaged_trial_is_named_before_anything_is_said_to_begin(run: Any, tmp_path: Path, name: str) -> None:
    run(trials=4)
    (tmp_path / "study/trials/00002" / name).write_text("garbage\n")
    refused = rf"00002/{name} must hold JSON objects; (it|line 1) is no JSON: restore it"
    with pytest.raises(records.DamagedError, match=refused):
        run(trials=4, on_begin=lambda: pytest.fail("the study is said to begin"))


def test_a_damaged_fence_of_a_trial_without_an_end_is_named_too(run: Any, tmp_path: Path) -> None:
    run(trials=4)
    trial = tmp_path / "study/trials/00002"
    (trial / "result.json").unlink()
    (trial / "attempt.json").write_text("garbage\n")
    with pytest.raises(records.DamagedError, match=r"00002/attempt.json must hold JSON objects; it is no JSON"):
        run(trials=4, on_begin=lambda: pytest.fail("the study is said to begin"))


def test_a_driver_that_dies_before_any_of_its_writes_is_taken_up(run: Any, toy: ModuleType, tmp_path: Path) -> None:
    """One fault a run, before each durable write of the driver's protocol in turn, until a run ends without one."""
    run(trials=5, directory="whole")
    whole = run.summary(tmp_path / "whole")
    for fault in range(3, 60, 4):
        directory = f"study{fault}"
        written: list[Path] = []

        def watch(path: Path, fault: int = fault, written: list[Path] = written) -> None:
            if path.name in ("trial.json", "attempt.json", "rungs.jsonl") or path.name.startswith("decision"):
                written.append(path)
                if len(written) == fault:
                    raise Crash

        records.watch = watch
        crashed = False
        try:
            run(trials=5, directory=directory)
        except Crash:
            crashed = True
        records.watch = lambda path: None
        run(trials=5, directory=directory)
        assert run.summary(tmp_path / directory) == whole
        if not crashed:
            return
    raise AssertionError("the faults never ran past the last write")
