"""A disk that takes no more ends the driver in one line, and no trial is told for it.

The disk is full from one write on until the study has ended: the one place that writes durably refuses. On a real file
system of a few KiB, where the kernel lets a user mount one, `full_disk.py` does the same.
"""

import errno
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from optuna.exceptions import StorageInternalError

from archsearch.errors import DiskFullError
from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Outcome, Unbuildable, classify, full_disk
from archsearch.studies.search.proposals import Proposals
from archsearch.studies.search.samplers import SamplerOptions
from archsearch.studies.search.storage import is_full
from archsearch.studies.tasks.direction import Direction

Run = Callable[[str], None]


@pytest.fixture
def run(toy: ModuleType, threads: Any, tmp_path: Path) -> Run:
    return lambda name: toy.study(tmp_path / name, lambda: threads(toy.ToyBody(0.0), 1), trials=6)


def ends(path: Path) -> list[tuple[Any, ...]]:
    found = {number: (trial.result(), trial.proposal()) for number, trial in StudyDirectory(path).trials().items()}
    return [(n, p["choices"], r.outcome, r.tokens, dict(r.values)) for n, (r, p) in found.items() if r and p]


class Disk:
    """Refuses every durable write from the `count`-th to a file of that name on."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.left, self.refused = name, count, list[Path]()

    def __call__(self, path: Path) -> None:
        self.left -= path.name.startswith(self.name)
        if self.left <= 0:
            self.refused.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *(("metrics-1.jsonl", 9), ("latest.json", 9), ("worker-1.json", 2), ("result.json", 2)),  # by workers
        *(("trial.json", 2), ("attempt.json", 2), ("rungs.jsonl", 2), ("decision-", 3)),  # by the driver
    ],
)
def test_a_full_disk_ends_the_driver_in_one_line_and_nothing_is_lost(
    run: Run, toy: ModuleType, tmp_path: Path, name: str, count: int
) -> None:
    run("whole")
    records.watch = disk = Disk(name, count)
    with pytest.raises(DiskFullError) as error:
        run("study")
    study = tmp_path / "study"
    assert str(error.value) == (
        f"a study needs room to write; {disk.refused[0]} on {socket.gethostname()} cannot be written: "
        f"No space left on device; nothing is lost: free some space, then go on with archsearch study resume {study}"
    )
    assert error.value.exit_code == 2
    assert ends(study) == ends(tmp_path / "whole")[: len(ends(study))], "no end is written that is not a trial's own"
    records.watch = lambda path: None
    run("study")
    assert ends(study) == ends(tmp_path / "whole")


def test_what_a_full_disk_was_made_into_is_still_a_full_disk() -> None:
    try:
        try:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "a.json")
        except OSError as error:
            raise Unbuildable("no kernel came of it") from error
    except Unbuildable as error:
        assert str(full_disk(error)) == f"a.json on {socket.gethostname()} cannot be written: Disk quota exceeded"
        assert classify(error) is Outcome.INFRASTRUCTURE
    assert full_disk(OSError(errno.EIO, "Input/output error")) is None


def test_a_crew_whose_last_result_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from archsearch.studies.workers import crew

    class Clerk:
        number = 3

        def conclude(self, details: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "result.json")

    told = crew._Told()  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(OSError, match="No space left"):
        told.end(Clerk(), {})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert told.lost is not None, "so that nobody takes the trial for ended"


def test_half_a_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    records.append_json(path, {"x": 1})
    limited = f"""
import resource, signal
from pathlib import Path
from archsearch.studies.files import records
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
records.append_json(Path({str(path)!r}), {{"x": 2, "long": "-" * 99}})
"""
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True)
    assert "File too large" in done.stderr
    records.append_json(path, {"x": 3})
    assert records.read_lines(path) == [{"x": 1}, {"x": 3}]


def test_a_full_disk_under_a_database_is_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    proposals = Proposals(
        tmp_path / "none", {"loss": Direction.MINIMIZE}, SamplerOptions(), seed=0, holes=1, storage=url
    )
    with sqlite3.connect(tmp_path / "studies.db") as database:
        pages = database.execute("PRAGMA page_count").fetchone()[0]
    from sqlalchemy import event

    engine = proposals._kept.storage.engine  # pyright: ignore[reportPrivateUsage,reportAttributeAccessIssue]
    engine.dispose()
    event.listen(engine, "connect", lambda raw, record: raw.execute(f"PRAGMA max_page_count = {pages}"))
    with pytest.raises(StorageInternalError) as error:
        for number in range(2000):
            proposals.enqueue({"x": number, "text": "-" * 500}, "baseline:x")
    assert is_full(error.value)
    proposals.close()


def test_on_a_real_file_system_that_fills_up_nothing_is_lost() -> None:
    unshare = shutil.which("unshare")
    script = Path(__file__).with_name("full_disk.py")
    if unshare is None or subprocess.run([unshare, "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]).returncode:
        pytest.skip("this kernel lets no user mount a file system of a few KiB")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
