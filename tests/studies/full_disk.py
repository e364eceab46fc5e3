"""The toy study on a file system of its own that fills up again and again, until it has room.

    python tests/studies/full_disk.py

Mounts a tmpfs in a namespace of its own, where the kernel lets a user do that. Prints how often the driver ended, and
on which files; exit code 1 if its ends differ from those of a study that never met a full disk.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import toy_study
from conftest import ThreadExecutor  # pyright: ignore[reportAttributeAccessIssue]  # the one of this folder

from archsearch.errors import StudyError
from archsearch.studies.files.directory import StudyDirectory

INSIDE = "ON_A_SMALL_DISK"
KIB, BALLAST, STEP = 1024, 400, 20
"""The ballast of so many KiB gives way by a step each time; what is left besides is too little to begin."""
TRIALS = 6


def ends(path: Path) -> list[tuple[Any, ...]]:
    """What became of every trial."""
    found = {number: (trial.result(), trial.proposal()) for number, trial in StudyDirectory(path).trials().items()}
    return [(n, p["choices"], r.outcome, r.tokens, dict(r.values)) for n, (r, p) in found.items() if r and p]


def run(path: Path) -> None:
    """Begin the study or go on with it."""
    toy_study.study(path, lambda: ThreadExecutor(toy_study.ToyBody(0.0)), trials=TRIALS)


def fill_up(disk: Path) -> list[str]:
    """Run on a disk that gives way by a step each time; what the driver said each time that it ended."""
    ballast = disk / "ballast"
    said: list[str] = []
    with open(ballast, "wb") as file:
        file.write(bytes(BALLAST * KIB))
    for left in range(BALLAST, -1, -STEP):
        os.truncate(ballast, left * KIB)
        try:
            run(disk / "study")
        except (StudyError, OSError) as error:
            said.append(str(error))
        else:
            break
    return said


def main() -> int:
    """Compare the study with one that has room."""
    if INSIDE not in os.environ:
        again = ["unshare", "-rm", sys.executable, __file__]
        return subprocess.run(again, env={**os.environ, INSIDE: "1"}).returncode
    with tempfile.TemporaryDirectory() as place:
        disk = Path(place) / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={(BALLAST + STEP) * KIB}", "none", str(disk)], check=True)
        try:
            said = fill_up(disk)
            run(Path(place) / "whole")
            same = ends(disk / "study") == ends(Path(place) / "whole")
            told = [line for line in said if "needs room to write" in line]
            print(*said, sep="\n")
            print(f"the driver ended {len(said)} times, {len(told)} of them while it ran; the same ends: {same}")
        finally:
            subprocess.run(["umount", str(disk)], check=True)
    return 0 if same and told else 1


if __name__ == "__main__":
    sys.exit(main())
