"""Counts the bytes that kernels move through DRAM, by ncu, beside the byte model; test_moved_bytes_gpu runs it.

    python tests/kernels/moved_bytes.py gated_delta_net kda

prints {rule: {part: {"counted": ..., "model": ..., "launches": ...}}}, bytes a token. Exit code 3: no ncu, or it may
not read the counters here.
"""

import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from archsearch.kernels.bench.case import Case
from archsearch.kernels.bench.measure import inputs_of, sequence_parts
from archsearch.kernels.bench.values import forward_of
from archsearch.kernels.dispatch import compile
from archsearch.mixers.zoo import rules

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
BETWEEN = "spin_kernel"
"""The kernel that stands between two parts."""
INSIDE, AHEAD = "--inside", "--ahead"
NO_COUNTERS = 3
CASE = Case(torch.device("cuda"), torch.bfloat16, 16, 4096, 16, 128, 128, step_batch=1)
"""Every tensor is several times the size of the L2 cache, so what stays in it does not count."""


def run(names: list[str]) -> None:
    """Every part of every rule once, between marks, under a profiler that starts with the first mark."""
    for name in names:
        for part in parts_of(name):
            part()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            torch.cuda._sleep(1)  # pyright: ignore[reportPrivateUsage]
            part()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


def compile_ahead(names: list[str]) -> None:
    """Every rule in a process of its own, all at once: the profiled one then finds the kernels in Triton's cache."""
    running = [subprocess.Popen([sys.executable, __file__, AHEAD, name], stderr=subprocess.DEVNULL) for name in names]
    for process in running:
        process.wait()  # what cannot be compiled fails again, and is told of, where it is profiled


def parts_of(name: str) -> Iterator[Callable[[], None]]:
    """Forward, and forward with backward."""
    rule = rules[name]
    for part in sequence_parts(forward_of(compile(rule)), inputs_of(rule, CASE), rule, CASE):
        yield part.call


def models(name: str) -> dict[str, float]:
    """Bytes a token that the cost model tells, by part; needs no device."""
    from archsearch.lowering import lower
    from archsearch.lowering.cost import cost

    spent = cost(lower(rules[name]), CASE.sizes)
    return {"forward": spent.forward_bytes, "forward + backward": spent.training_bytes}


def sections(rows: list[dict[str, str]]) -> list[tuple[float, int]]:
    """Bytes and launches between marks, in the order in which they ran."""
    found: list[tuple[float, int]] = []
    for row in rows:
        if BETWEEN in row["Kernel Name"]:
            found.append((0.0, 0))
        elif found:
            moved, launches = found[-1]
            found[-1] = (moved + sum(float(row[metric].replace(",", "")) for metric in METRICS), launches + 1)
    return found


def table(text: str) -> list[dict[str, str]]:
    """The rows of ncu's page; the first line after the names holds units."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    return list(csv.DictReader(lines))[1:]


def program() -> str | None:
    """ncu on the path, or the newest that is installed beside CUDA."""
    places = sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"))
    return shutil.which("ncu") or (str(places[-1]) if places else None)


def main(names: list[str]) -> int:
    """Print what was counted; the exit code."""
    ncu = program()
    if ncu is None:
        print("no ncu here", file=sys.stderr)
        return NO_COUNTERS
    compile_ahead(names)
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory, "page.csv")
        told = subprocess.run(
            [
                *(ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"),
                *("--profile-from-start", "off", "--metrics", ",".join(METRICS), "--log-file", str(page)),
                *(sys.executable, __file__, INSIDE, *names),
            ],
            capture_output=True,
            text=True,
        )
        text = page.read_text() if page.exists() else ""
    found = sections(table(text))
    if not found:
        print(text[-2000:], told.stderr[-2000:], sep="\n", file=sys.stderr)
        return NO_COUNTERS if "ERR_NVGPUCTRPERM" in text or "LibraryNotLoaded" in text else 1
    tokens, counted = CASE.batch * CASE.tokens, iter(found)
    said: dict[str, dict[str, dict[str, float]]] = {}
    for name in names:
        for part, model in models(name).items():
            moved, launches = next(counted)
            said.setdefault(name, {})[part] = {"counted": moved / tokens, "model": model, "launches": launches}
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        run(sys.argv[2:])
    elif sys.argv[1:2] == [AHEAD]:
        for part in parts_of(sys.argv[2]):
            part()
    else:
        sys.exit(main(sys.argv[1:]))
