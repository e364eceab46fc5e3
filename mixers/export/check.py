"""The export's own test, run in a process that cannot import archsearch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CLEAN = """
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "archsearch":
            raise ImportError("archsearch is not there")

sys.meta_path.insert(0, Blocked())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What selftest.py printed, one line a check, and whether all of them held."""

    passed: bool
    lines: tuple[str, ...]


def run_selftest(directory: Path, *, timeout: float = 600.0) -> Report:
    """Run `selftest.py` of an exported directory in a clean process."""
    command = [sys.executable, "-I", "-B", "-c", CLEAN, str(directory.resolve() / "selftest.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    return Report(done.returncode == 0, tuple((done.stdout + done.stderr).splitlines()))
