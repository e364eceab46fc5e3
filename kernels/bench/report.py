"""What a bench found, as a table and as plain data."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from archsearch.kernels.bench.measure import Case, Measured, Timing

COLUMNS = ("", "ms", "tokens/s", "first call s", "byte floor", "peak MiB", "beside ours")
EVERYWHERE = 4
"""The columns after these are measured on CUDA only."""


@dataclass(frozen=True, slots=True)
class Benched:
    """`measured`: ours, each followed by its peer. `note` says why there is none."""

    case: Case
    measured: tuple[Measured, ...]
    note: str | None

    @property
    def passed(self) -> bool:
        """Whether every rule of ours had right values."""
        return all(each.verdict.passed for each in self.measured if each.path.startswith("archsearch"))

    def as_json(self) -> dict[str, Any]:
        """Plain data with the machine and the versions."""
        return {
            "machine": machine(self.case),
            "torch": torch.__version__,
            "case": {**asdict(self.case), "device": str(self.case.device), "dtype": str(self.case.dtype)},
            "measured": [{**asdict(each), "verdict": _verdict(each)} for each in self.measured],
            "note": self.note,
        }


def machine(case: Case) -> str:
    """The card, or the processor and the threads that torch uses."""
    if case.device.type == "cuda":
        return torch.cuda.get_device_name(case.device)
    return f"{platform.processor() or platform.machine()} CPU, {torch.get_num_threads()} threads"


def print_benched(found: Benched, page: Console) -> None:
    """The machine, a line a part, and a line for each rule without a speed."""
    page.print(Text(f"{machine(found.case)}, torch {torch.__version__}; {found.case}", "bold"), highlight=False)
    columns = COLUMNS if found.case.device.type == "cuda" else COLUMNS[:EVERYWHERE]
    table = Table(*columns, box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    ours: dict[tuple[str, str], Timing] = {}
    for each in found.measured:
        if each.timings:
            table.add_row(Text(f"{each.rule}  ({each.path})", "bold"))
        for timing in each.timings:
            own = ours.setdefault((each.rule, timing.part), timing)
            table.add_row(f"  {timing.part}", *_cells(timing, own)[: len(columns) - 1])
    page.print(table, highlight=False)
    for each in found.measured:
        if not each.verdict.passed:
            page.print(Text(f"{each.rule} ({each.path}): no speed, its values are wrong. {each.verdict}", "bold red"))
    if found.note:
        page.print(Text(found.note, "dim"))


def _cells(timing: Timing, ours: Timing) -> tuple[str, ...]:
    return (
        f"{timing.seconds * 1000:.3f}",
        f"{timing.tokens_per_second:,.0f}",
        f"{timing.first_seconds:.2f}",
        "" if timing.floor_share is None else f"{timing.floor_share:.0%}",
        "" if timing.peak_bytes is None else f"{timing.peak_bytes / 2**20:,.0f}",
        "" if timing is ours else f"{timing.seconds / ours.seconds:.2f} x",
    )


def _verdict(each: Measured) -> dict[str, Any]:
    error = each.verdict.error
    known = error if error == error else None
    return {"passed": each.verdict.passed, "error": known, "bound": each.verdict.bound, "where": each.verdict.where}
