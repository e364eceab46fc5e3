"""How far a study has come, from its files alone, so that it can be asked beside the driver."""

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archsearch.studies.design.config import StudyConfig, read_study_config
from archsearch.studies.evidence.findings import rung_summary
from archsearch.studies.evidence.rows import Evidence, Row, read_evidence
from archsearch.studies.files import records
from archsearch.studies.files.decisions import read_decisions
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.lock import is_held
from archsearch.studies.files.origins import IMPORT
from archsearch.studies.files.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Status:
    """A study now. driver: who runs it, or None. wanted: trials, as far as the space has so many. spent: whether every
    variant of the space was tried. seconds_left: None while nothing has ended yet.
    """

    directory: str
    driver: str | None
    wanted: int
    ended: int
    outcomes: Mapping[str, int]
    running: list[dict[str, Any]]
    rungs: list[dict[str, Any]]
    seconds_left: float | None
    spent: bool = False

    def record(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


def read_status(directory: StudyDirectory) -> Status:
    """The study as its files say. StudyError if the directory holds none."""
    evidence = read_evidence(directory)
    config = read_study_config(directory.path)
    decisions = read_decisions(directory.rungs)
    over = ended(evidence)
    wanted = wanted_of(directory, evidence, config)
    running = [_running(evidence, directory, row) for row in evidence.rows if row.outcome is None]
    slots = config.resources.concurrent or max(1, len(running))
    return Status(
        directory=str(directory.path),
        driver=_driver(directory),
        wanted=wanted,
        ended=len(over),
        outcomes=evidence.outcomes,
        running=running,
        rungs=[
            rung_summary([d for d in decisions if d.rung == rung], evidence.objectives)
            for rung in sorted({d.rung for d in decisions})
        ],
        seconds_left=_seconds_left([_wall(directory, row) for row in over], running, wanted, slots),
        spent=directory.is_spent(),
    )


def ended(evidence: Evidence) -> list[Row]:
    """The trials that have an end; repetitions of others are none."""
    return [row for row in evidence.rows if row.outcome not in (None, Outcome.DUPLICATE)]


def wanted_of(directory: StudyDirectory, evidence: Evidence, config: StudyConfig) -> int:
    """How many trials the configuration asks for, all rates counted, and what came from an older study; of a spent
    space, how many there are.
    """
    if directory.is_spent():
        return sum(row.outcome is not Outcome.DUPLICATE for row in evidence.rows)
    rates = 1 if config.entrants else max(1, len(config.learning_rates))
    imported = sum(row.origin == IMPORT and row.outcome is not Outcome.DUPLICATE for row in evidence.rows)
    again = sum(row.replicate_of is not None for row in evidence.rows)  # each at one rate, the one it was proposed with
    return (config.trials + len(evidence.plan["baselines"])) * rates + imported - again * (rates - 1)


def _running(evidence: Evidence, directory: StudyDirectory, row: Row) -> dict[str, Any]:
    total = evidence.plan["rung_tokens"][-1]
    speed = _pace(directory, row)
    since = time.time() - (row.curve[-1].at or time.time()) if row.curve else 0.0
    return {
        "trial": row.number,
        "name": row.name,
        "attempt": row.attempt,
        "progress": row.tokens / total,
        "tokens_per_second": speed,
        "seconds_left": max(0.0, (total - row.tokens) / speed - since) if speed else None,
    }


def _pace(directory: StudyDirectory, row: Row) -> float | None:
    """Tokens a second by the clock between the two newest evaluations of one attempt, or since the attempt began:
    trials that train as one model each go at the pace of the whole. None where the files do not say.
    """
    if not row.curve:
        return None
    *before, last = row.curve
    own = [m for m in before if m.attempt == last.attempt]
    begun = own[-1].at if own else directory.trial(row.number).began(last.attempt)
    tokens = last.tokens - (before[-1].tokens if before else 0)
    if last.at is None or begun is None or last.at <= begun:
        return None
    return tokens / (last.at - begun)


def _wall(directory: StudyDirectory, row: Row) -> float:
    """Seconds by the clock of the attempts at a trial, each up to its newest evaluation; where the files do not say,
    its own seconds of training.
    """
    ends = {m.attempt: m.at for m in row.curve if m.at is not None}
    begun = {attempt: directory.trial(row.number).began(attempt) for attempt in ends}
    spans = [end - start for attempt, end in ends.items() if (start := begun[attempt]) is not None]
    return sum(spans) if spans else row.seconds


def _seconds_left(walls: list[float], running: list[dict[str, Any]], wanted: int, slots: int) -> float | None:
    """At the mean pace of the trials that ended, `slots` at a time."""
    paced = [seconds for seconds in walls if seconds]
    if not paced:
        return None
    begun = sum(float(trial["progress"]) for trial in running)
    return max(0.0, wanted - len(walls) - begun) * sum(paced) / len(paced) / slots


def _driver(directory: StudyDirectory) -> str | None:
    """The living driver as text; of another host it is only known who was last."""
    try:
        holder = records.read_json(directory.lock) or {}
        records.check_kinds(holder, {"pid": int, "host": str})
    except ValueError:  # it is being written, or there is none
        return None
    pid, host = holder["pid"], holder["host"]
    if host != socket.gethostname():
        return f"last seen: process {pid} on {host}"
    return f"process {pid} on {host}" if is_held(directory.lock) else None
