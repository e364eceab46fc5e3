"""What Triton makes of an entry for an H100 or H200, seen without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("rule", ["gated_delta_net", "kda"])
def test_both_passes_stay_in_registers(rule: str) -> None:
    script = Path(__file__).with_name("entry_for_hopper.py")
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": root}
    size = ("8", "4096", "16", "128")
    run = subprocess.run(
        [sys.executable, script, rule, *size], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, dict[str, int]] = json.loads(run.stdout)
    assert set(found) == {"enter", "leave"}
    assert all(kernel["stack"] == 0 for kernel in found.values()), found
