"""How far a study has come, from its files alone, so that it can be asked beside the driver."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archsearch.studies.design.config import read_study_config
from archsearch.studies.evidence.findings import rung_summary
from archsearch.studies.evidence.rows import Evidence, Row, read_evidence
from archsearch.studies.files import records
from archsearch.studies.files.decisions import read_decisions
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.lock import is_held


@dataclass(frozen=True, slots=True)
class Status:
    """A study now. driver: who runs it, or None. seconds_left: None while nothing has ended yet."""

    directory: str
    driver: str | None
    wanted: int
    ended: int
    outcomes: Mapping[str, int]
    running: list[dict[str, Any]]
    rungs: list[dict[str, Any]]
    seconds_left: float | None

    def record(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


def read_status(directory: StudyDirectory) -> Status:
    """The study as its files say. StudyError if the directory holds none."""
    evidence = read_evidence(directory)
    config = read_study_config(directory.path)
    decisions = read_decisions(directory.rungs)
    rates = 1 if config.entrants else max(1, len(config.learning_rates))
    wanted = (config.trials + len(evidence.plan["baselines"])) * rates
    over = [row for row in evidence.rows if row.outcome is not None and not _is_duplicate(row)]
    running = [_running(evidence, row) for row in evidence.rows if row.outcome is None]
    slots = config.resources.concurrent or max(1, len(running))
    return Status(
        directory=str(directory.path),
        driver=_driver(directory),
        wanted=wanted,
        ended=len(over),
        outcomes=_count(evidence),
        running=running,
        rungs=[
            rung_summary([d for d in decisions if d.rung == rung], evidence.objectives)
            for rung in sorted({d.rung for d in decisions})
        ],
        seconds_left=_seconds_left(over, running, wanted, slots),
    )


def _is_duplicate(row: Row) -> bool:
    return row.outcome is not None and row.outcome.value == "duplicate"


def _count(evidence: Evidence) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in evidence.rows:
        if row.outcome is not None:
            counts[row.outcome.value] = counts.get(row.outcome.value, 0) + 1
    return counts


def _running(evidence: Evidence, row: Row) -> dict[str, Any]:
    total = evidence.plan["rung_tokens"][-1]
    speed = row.tokens / row.seconds if row.seconds else None
    return {
        "trial": row.number,
        "name": row.name,
        "attempt": row.attempt,
        "progress": row.tokens / total,
        "tokens_per_second": speed,
        "seconds_left": (total - row.tokens) / speed if speed else None,
    }


def _seconds_left(over: list[Row], running: list[dict[str, Any]], wanted: int, slots: int) -> float | None:
    """At the mean pace of the trials that ended, `slots` at a time."""
    paced = [row.seconds for row in over if row.seconds]
    if not paced:
        return None
    begun = sum(float(trial["progress"]) for trial in running)
    return max(0.0, wanted - len(over) - begun) * sum(paced) / len(paced) / slots


def _driver(directory: StudyDirectory) -> str | None:
    """The living driver as text; of another host it is only known who was last."""
    try:
        holder = records.read_json(directory.lock)
    except ValueError:
        return None
    if holder is None:
        return None
    pid, host = int(str(holder["pid"])), str(holder["host"])
    if host != socket.gethostname():
        return f"last seen: process {pid} on {host}"
    return f"process {pid} on {host}" if is_held(directory.lock) else None
