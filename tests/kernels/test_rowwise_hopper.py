"""What Triton makes of the kernels around a rule for an H100 or H200, seen without one; see test_triton_hopper."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ASIDE = [os.environ["ARCHSEARCH_TRITON"]] if "ARCHSEARCH_TRITON" in os.environ else []
KERNELS = {"convolve", "cross_entropy", "gated_norm"}


@pytest.mark.parametrize("width", [128, 100])
def test_every_kernel_keeps_to_its_registers(width: int) -> None:
    script = Path(__file__).with_name("rowwise_for_hopper.py")
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join((*ASIDE, root))}
    command = [sys.executable, str(script), str(width)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert set(found) == {*KERNELS, *(f"{name}_back" for name in KERNELS), "adamw"}
    assert all(kernel["stack"] == 0 and kernel["registers"] < 255 for kernel in found.values()), found
