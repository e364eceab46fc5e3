"""A study's status as a terminal shows it: once, or as a table that follows the files."""

import time
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from archsearch.studies.evidence.status import Status, read_status
from archsearch.studies.files.directory import StudyDirectory

SECONDS_BETWEEN_LOOKS = 1.0


def follow(console: Console, directory: StudyDirectory) -> Status:
    """Show the status until the study has ended, its driver is gone or the view is interrupted; the last one."""
    found = read_status(directory)
    try:
        with Live(status_view(found), console=console, refresh_per_second=4, transient=True) as live:
            while found.driver is not None and found.ended < found.wanted:
                time.sleep(SECONDS_BETWEEN_LOOKS)
                found = read_status(directory)
                live.update(status_view(found))
    except KeyboardInterrupt:
        pass
    return found


def status_view(found: Status) -> RenderableType:
    """Head, outcomes, a line a running trial, a line a rung, the time left."""
    parts: list[RenderableType] = [
        Text(f"{found.directory}: {found.ended} of {found.wanted} trials ended; driver: {found.driver or 'none'}")
    ]
    if found.outcomes:
        parts.append(Text("  " + ", ".join(f"{count} {name}" for name, count in found.outcomes.items())))
    if found.running:
        parts.append(_running(found.running))
    for rung in found.rungs:
        parts.append(Text(f"  rung at {rung['tokens']:,} tokens: {rung_words(rung)}"))
    if found.seconds_left is not None and found.ended < found.wanted:
        parts.append(Text(f"  about {minutes(found.seconds_left)} left"))
    return Group(*parts)


def _running(trials: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("trial", "variant", "progress", "", "tokens/s", "left", "attempt"):
        table.add_column(title, justify="left" if title in ("variant", "") else "right")
    for trial in trials:
        speed, left = trial["tokens_per_second"], trial["seconds_left"]
        table.add_row(
            str(trial["trial"]),
            str(trial["name"]),
            f"{trial['progress']:.0%}",
            ProgressBar(total=1.0, completed=trial["progress"], width=20),
            f"{speed:,.0f}" if speed else "",
            minutes(left) if left is not None else "",
            str(trial["attempt"]),
        )
    return table


def rung_words(rung: dict[str, Any]) -> str:
    """`9 came, 4 stopped; best recall 0.93`."""
    leading = ", ".join(
        f"{key.replace('_', ' ', 1)} {value:.4g}" for key, value in rung.items() if key.startswith("best_")
    )
    return f"{rung['arrived']} came, {rung['stopped']} stopped; {leading}"


def minutes(seconds: float) -> str:
    """A length of time in the unit that fits."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
