"""What Triton makes of the scans for an H100 or H200, seen without one; see test_triton_hopper."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ASIDE = [os.environ["ARCHSEARCH_TRITON"]] if "ARCHSEARCH_TRITON" in os.environ else []


SPILLED = 8
"""Bytes a thread that may be kept outside the registers: a number or two where rows are not aligned."""


@pytest.mark.parametrize(("channels", "numbers"), [(1536, 16), (100, 5), (1536, 64)])
def test_every_scan_keeps_to_its_registers(channels: int, numbers: int) -> None:
    script = Path(__file__).with_name("scan_for_hopper.py")
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join((*ASIDE, root))}
    command = [sys.executable, str(script), str(channels), str(numbers)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert set(found) == {"scan_forward", "scan_backward", "selective_forward", "selective_backward"}
    assert all(kernel["stack"] <= SPILLED and kernel["registers"] <= 255 for kernel in found.values()), found
