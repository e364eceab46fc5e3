"""Bench files of several runs as one Markdown table: python -m archsearch.kernels.bench.join FILE...

Runs are joined only where they ran on one kind of machine with the same torch and Triton, and where the control, which
every run times, took as long: a device that was slower in one of them would make every ratio across them wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from archsearch.errors import ArchsearchError, ConfigError

CONTROL = "gated_delta_net"
APART = 0.03
"""How far the control's times may lie apart, relative."""
HEAD = ("rule", "B x T, H", "part", "who", "ms", "graph ms", "x ours", "floor", "peak MiB", "launches")

Run = Mapping[str, Any]
Key = tuple[str, str, str]


def joined(runs: Mapping[str, Run]) -> str:
    """The table, and below it what each peer really ran. `runs` by file name.

    Errors: ConfigError for runs that cannot be joined.
    """
    _check(runs)
    ours: dict[Key, float] = {}
    lines: list[str] = []
    paths: dict[str, str] = {}
    for run in runs.values():
        for each in run["measured"]:
            if each["role"] != "ours" and each["timings"]:
                paths[f"{each['rule']}, {_who(each)}"] = each["path"]
            lines += _rows(each, ours)
    first = next(iter(runs.values()))
    told = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    commands = [f"- {run['date']}: `{run['command']}`" for run in runs.values()]
    notes = [f"- {peer}: {path}" for peer, path in paths.items()]
    head = [_line(HEAD), _line(["---"] * len(HEAD))]
    return "\n".join([f"{first['machine']}; {told}", "", *commands, "", *head, *lines, "", *notes])


def _rows(each: Mapping[str, Any], ours: dict[Key, float]) -> Iterator[str]:
    """A line a part; those of a rule's control that another run has told already are left out."""
    size = _size(each)
    for timing in each["timings"]:
        key, seconds = (each["rule"], size, timing["part"]), timing["seconds"]
        if each["role"] == "ours":
            if key in ours:
                continue
            ours[key] = seconds
        graph, floor, peak = timing["graph_seconds"], timing["floor_share"], timing["peak_bytes"]
        yield _line(
            [
                *(each["rule"], size, timing["part"], _who(each), f"{seconds * 1e3:.3f}"),
                "-" if graph is None else f"{graph * 1e3:.3f}",
                f"{seconds / ours[key]:.2f}" if each["role"] != "ours" and key in ours else "",
                "-" if floor is None else f"{floor:.0%}",
                "-" if peak is None else f"{peak / 2**20:,.0f}",
                "-" if timing["launches"] is None else str(timing["launches"]),
            ]
        )


def _check(runs: Mapping[str, Run]) -> None:
    (first_name, first), *others = runs.items()
    for name, run in others:
        for what in ("machine", "torch", "triton"):
            one, other = _place(first, what), _place(run, what)
            if one != other:
                raise ConfigError(
                    f"runs are joined on one kind of machine and versions; {first_name} has {what} {one}, "
                    f"{name} has {other}. Run one of them again"
                )
        for key, seconds in _control(run).items():
            expected = _control(first).get(key, seconds)
            if abs(seconds / expected - 1) > APART:
                raise ConfigError(
                    f"runs are joined where {CONTROL} took as long within {APART:.0%}; {key[2]} at {key[1]} took "
                    f"{expected * 1e3:.3f} ms in {first_name} and {seconds * 1e3:.3f} ms in {name}. "
                    "Run one of them again"
                )


def _control(run: Run) -> dict[Key, float]:
    return {
        (each["rule"], _size(each), timing["part"]): timing["seconds"]
        for each in run["measured"]
        for timing in each["timings"]
        if each["rule"] == CONTROL and each["role"] == "ours"
    }


def _place(run: Run, what: str) -> str:
    return run["machine"] if what == "machine" else run["versions"].get(what, "none")


def _size(each: Mapping[str, Any]) -> str:
    case = each["case"]
    return f"{case['batch']} x {case['tokens']}, {case['heads']}"


def _who(each: Mapping[str, Any]) -> str:
    package = each["path"].partition(",")[0]
    return "ours" if each["role"] == "ours" else f"{each['role']} {package}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(files: Sequence[str]) -> int:
    """Print the table of some files; the exit code."""
    try:
        print(joined({Path(file).name: json.loads(Path(file).read_text(encoding="utf-8")) for file in files}))
    except ArchsearchError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
