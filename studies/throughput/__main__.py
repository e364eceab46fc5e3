"""Trials an hour of a grid of recall trials: as a study, and one after another with the layers of another library.

    python -m archsearch.studies.throughput                    this machine's first GPU; --gpus 2: two of them
    python -m archsearch.studies.throughput --peer             beside flash-linear-attention in a plain PyTorch loop
    python -m archsearch.studies.throughput --tiny --device cpu

The grid: four rules at four learning rates on some seeds; two layers of width 128, sequences of 256 tokens with 32
pairs, 500 steps. The clock of the study runs from its first file to its last, driver, evaluations and checkpoints
among it; compiling and the start of the processes stand outside, on both sides. A peer's trial is its steps alone: its
data lies on the device before its clock starts, and it is not evaluated.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from archsearch.studies.throughput.as_study import measure_study
from archsearch.studies.throughput.grid import FULL, RULES, TINY, Grid
from archsearch.studies.throughput.plain_loop import measure_rule
from archsearch.typed_data import to_plain


def main() -> None:
    """Measure what was asked for, print a table, keep the numbers."""
    parser = argparse.ArgumentParser(prog="python -m archsearch.studies.throughput", description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1], help="a study on so many GPUs, one after another")
    parser.add_argument("--lanes", type=int, default=8, help="trials of one batched model")
    parser.add_argument("--processes", type=int, nargs="+", help="of a GPU, one study for each; one a batched model")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--peer", nargs="*", metavar="RULE", help="rules of the plain loop; gated_delta_net by default")
    parser.add_argument("--peer-trials", type=int, default=8, help="trials of each of them")
    parser.add_argument(
        "--peer-seconds", type=float, default=400, help="no further trial of a rule begins after so long"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a grid of seconds")
    parser.add_argument("--json", type=Path, help="where to keep the numbers")
    given = parser.parse_args()
    grid = TINY if given.tiny else FULL
    changed = {name: getattr(given, name) for name in ("steps", "batch", "seeds") if getattr(given, name) is not None}
    measured = measure(replace(grid, **changed), given)
    sys.stdout.write("\n".join(table(measured)) + "\n")
    if given.json is not None:
        given.json.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")


def measure(grid: Grid, given: argparse.Namespace) -> dict[str, Any]:
    """Everything that was asked for."""
    measured: dict[str, Any] = {"grid": to_plain(grid), "studies": []}
    for gpus in given.gpus:
        for processes in given.processes or [None]:
            measured["studies"].append(measure_study(grid, given.device, gpus, given.lanes, processes))
            tell("\n".join(table({"studies": measured["studies"][-1:]})))
    if given.peer is not None:
        names = given.peer or [RULES[0]]
        measured["peer"] = {
            name: measure_rule(grid, name, given.peer_trials, given.device, seconds=given.peer_seconds, tell=tell)
            for name in names
        }
        seconds = [peer["milliseconds"] / 1000 * grid.steps for peer in measured["peer"].values()]
        measured["peer_trials_per_gpu_hour"] = 3600 / (sum(seconds) / len(seconds))
        most = grid.trials // len(grid.names)
        measured["peer_share"] = sum(min(p["trials"], most) for p in measured["peer"].values()) / grid.trials
        alone = next((study for study in measured["studies"] if study["gpus"] in (0, 1)), None)
        if alone is not None:
            measured["ratio"] = alone["trials_per_gpu_hour"] / measured["peer_trials_per_gpu_hour"]
    by_gpus = {study["gpus"]: study for study in measured["studies"]}
    if {1, 2} <= by_gpus.keys():
        measured["scaling"] = 2 * by_gpus[2]["trials_per_gpu_hour"] / by_gpus[1]["trials_per_gpu_hour"]
    return measured


def tell(text: str) -> None:
    """On the way, what is known already."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def table(measured: Mapping[str, Any]) -> list[str]:
    """What was measured, in a few lines."""
    lines: list[str] = []
    for study in measured["studies"]:
        where = f"{study['gpus']} GPU" if study["gpus"] else "CPU"
        lines.append(
            f"{where}: {study['complete']} of {study['trials']} trials in {study['seconds']:.1f} s, "
            f"{study['trials_per_gpu_hour']:,.0f} an hour and device; {study['groups']} groups, "
            f"{study['workers']} processes"
        )
        shares = ", ".join(f"{what} {share:.1%}" for what, share in study["shares"].items())
        outside = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in study["outside the clock"].items())
        lines.append(f"    one process trains at least in {study['in training']:.1%} of that time")
        lines += [f"    of a process's time: {shares}", f"    before the clock: {outside}"]
        lines += [f"    not complete: {fault[:150]}" for fault in study["faults"][:3]]
        lines.append(f"    recall of all trials, from {study['recall'][0]:.3f} to {study['recall'][-1]:.3f}")
    for name, peer in measured.get("peer", {}).items():
        lines.append(
            f"{name} in a plain loop: {peer['milliseconds']:.2f} ms a step over {peer['trials']} trials of "
            f"{peer['steps']} steps ({peer['path']}); first step {peer['first']:.1f} s, before the clock"
        )
    if "peer_trials_per_gpu_hour" in measured:
        lines.append(
            f"plain loop: {measured['peer_trials_per_gpu_hour']:,.0f} trials an hour, extrapolated from "
            f"{measured['peer_share']:.0%} of the grid; the study is {measured['ratio']:.1f}x as fast on one GPU"
        )
    if "scaling" in measured:
        lines.append(f"two GPUs: {measured['scaling']:.2f}x the trials an hour of one")
    return lines


if __name__ == "__main__":
    main()
