"""What a bench found, as a table and as plain data."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from archsearch.kernels.bench.apart import Broken
from archsearch.kernels.bench.case import Case
from archsearch.kernels.bench.cold import Cold, FirstCall
from archsearch.kernels.bench.measure import Measured, Role, Timing
from archsearch.kernels.bench.timing import copy_bandwidth

COLUMNS = (("ms", 9), ("graph", 9), ("x ours", 8), ("floor", 7), ("peak MiB", 10), ("launches", 10), ("first s", 9))
EVERYWHERE = ("ms", "first s")
"""The other columns are measured on CUDA only."""
LABEL = 24
PACKAGES = ("torch", "triton", "fla-core", "flash-linear-attention", "flash-qla", "tilelang")


@dataclass(frozen=True, slots=True)
class Benched:
    """`measured`: a rule of ours at every size, then its peers. `notes`: why there is no peer, what went wrong."""

    command: str
    cases: tuple[Case, ...]
    measured: tuple[Measured, ...] = ()
    cold: tuple[Cold, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every rule of ours had right values."""
        return all(each.verdict.passed for each in self.measured if each.role is Role.OURS)

    def with_measured(self, found: Sequence[Measured]) -> Benched:
        """With further measurements."""
        return replace(self, measured=(*self.measured, *found))

    def with_cold(self, found: Cold) -> Benched:
        """With the first calls of a rule."""
        return replace(self, cold=(*self.cold, found))

    def as_json(self) -> dict[str, Any]:
        """Plain data with the day, the machine, the versions and the command; seconds and bytes."""
        device = self.cases[0].device
        return {
            "date": date.today().isoformat(),
            "command": self.command,
            "machine": machine(device),
            "versions": versions(),
            "copy_bandwidth": copy_bandwidth(device) if device.type == "cuda" else None,
            "measured": [_plain(each) for each in self.measured],
            "cold": [
                {
                    "rule": each.rule,
                    "case": _case(each.case),
                    "empty_caches": _first(each.empty),
                    "filled_caches": _first(each.filled),
                }
                for each in self.cold
            ],
            "notes": list(self.notes),
        }


def machine(device: torch.device) -> str:
    """The card, or the processor and the threads that torch uses."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()} CPU, {torch.get_num_threads()} threads"


def versions() -> dict[str, str]:
    """Of Python and of every package that takes part, where it is installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def save(text: str, path: Path) -> None:
    """The file whole or not at all."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def print_benched(found: Benched, page: Console) -> None:
    """The machine, a table a size, ratios over all sizes, and a line for each measurement without a speed."""
    device = found.cases[0].device
    told = ", ".join(f"{name} {number}" for name, number in versions().items() if name in ("torch", "triton"))
    _say(page, f"{machine(device)}, {told}, {date.today().isoformat()}", "bold")
    for case in found.cases:
        here = [each for each in found.measured if each.case == case and each.timings]
        if here:
            _print_case(case, here, page)
    for line in _ratios(found):
        _say(page, line)
    for each in found.cold:
        _say(
            page,
            f"{each.rule}, first forward + backward: {_told(each.empty)}; in a second process {_told(each.filled)}",
        )
    for each in found.measured:
        if not each.verdict.passed:
            _say(page, _without_speed(each), "bold red")
    for note in found.notes:
        _say(page, note, "dim")


def _print_case(case: Case, measured: Sequence[Measured], page: Console) -> None:
    columns = [(name, wide) for name, wide in COLUMNS if case.device.type == "cuda" or name in EVERYWHERE]
    _say(page, f"\n{case}", "bold cyan")
    _say(page, " " * LABEL + "".join(name.rjust(wide) for name, wide in columns) + "tokens/s".rjust(14), "dim")
    ours: dict[tuple[str, str], Timing] = {}
    for each in measured:
        kind = "" if each.role is Role.OURS else f"{each.role.value}: "
        _say(page, f"{each.rule}  {kind}{each.path}", "bold")
        for timing in each.timings:
            if each.role is Role.OURS:
                ours[each.rule, timing.part] = timing
            cells = _cells(timing, ours.get((each.rule, timing.part)))
            row = "".join(cells[name].rjust(wide) for name, wide in columns)
            _say(page, f"  {timing.part}".ljust(LABEL) + row + f"{timing.tokens_per_second:,.0f}".rjust(14))


def _cells(timing: Timing, ours: Timing | None) -> dict[str, str]:
    return {
        "ms": f"{timing.seconds * 1000:.3f}",
        "graph": "-" if timing.graph_seconds is None else f"{timing.graph_seconds * 1000:.3f}",
        "x ours": "" if ours is None or timing is ours else f"{timing.seconds / ours.seconds:.2f}",
        "floor": "" if timing.floor_share is None else f"{timing.floor_share:.0%}",
        "peak MiB": "" if timing.peak_bytes is None else f"{timing.peak_bytes / 2**20:,.0f}",
        "launches": "" if timing.launches is None else str(timing.launches),
        "first s": f"{timing.first_seconds:.2f}",
    }


def _ratios(found: Benched) -> Iterator[str]:
    """A peer's time over ours, the geometric mean over the sizes that both were timed at, a line a peer."""
    ours = {
        (each.rule, each.case, timing.part): timing.seconds
        for each in found.measured
        for timing in each.timings
        if each.role is Role.OURS
    }
    ratios: dict[tuple[str, str], dict[str, list[float]]] = {}
    for each in found.measured:
        for timing in each.timings:
            own = ours.get((each.rule, each.case, timing.part))
            if each.role is not Role.OURS and own is not None:
                parts = ratios.setdefault((each.rule, f"{each.role.value} {each.path.partition(',')[0]}"), {})
                parts.setdefault(timing.part, []).append(timing.seconds / own)
    for (rule, peer), parts in ratios.items():
        told = ", ".join(f"{part} {geometric_mean(each):.2f} x ours" for part, each in parts.items())
        count = max(len(each) for each in parts.values())
        yield f"{rule}, {peer}, geometric mean over {count} size{'s' if count > 1 else ''}: {told}"


def _without_speed(each: Measured) -> str:
    reason = each.verdict.where if each.verdict.error != each.verdict.error else f"its values are wrong. {each.verdict}"
    return f"{each.rule} ({each.path}) at {each.case}: no speed, {reason}"


def _told(found: FirstCall | Broken) -> str:
    if isinstance(found, Broken):
        return found.reason
    return f"{found.call:.2f} s (imports before it {found.imports:.2f} s)"


def _say(page: Console, text: str, style: str = "") -> None:
    page.print(Text(text, style), highlight=False, soft_wrap=True)


def _plain(each: Measured) -> dict[str, Any]:
    error = each.verdict.error
    verdict = {
        "passed": each.verdict.passed,
        "error": error if error == error else None,
        "bound": each.verdict.bound,
        "where": each.verdict.where,
    }
    plain = {"rule": each.rule, "role": each.role.value, "path": each.path, "case": _case(each.case)}
    return {**plain, "verdict": verdict, "timings": [asdict(timing) for timing in each.timings]}


def _case(case: Case) -> dict[str, Any]:
    return {**asdict(case), "device": str(case.device), "dtype": str(case.dtype)}


def _first(found: FirstCall | Broken) -> dict[str, Any]:
    return asdict(found)
