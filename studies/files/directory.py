"""The files of a study: where each lies, who writes it, and what is read back from it.

STUDY/study.json          what was asked; written once, by the driver
STUDY/optuna.journal      the proposals and what was told about them
STUDY/driver.lock         held by the one driver
STUDY/rungs.jsonl         one decision a line, on disk before it acts
STUDY/checks.jsonl        what was found of each rule before it was trained, a line a rule; by the workers
STUDY/stop.json           there while the driver and the workers are asked to stop
STUDY/spent.json          there once every variant of the space was tried
STUDY/trials/00012/
    trial.json            the proposal; written by the driver before training
    attempt.json          the fence: the attempt that may write
    worker-2.json         by the worker of attempt 2 when it begins: its process and host, and when
    metrics-2.jsonl       one evaluation a line, by the worker of attempt 2
    checkpoint/           by the worker
    decision-65536.json   copied from rungs.jsonl for the worker
    log-2.txt             a failure's traceback
    result.json           the end of the trial; by the worker, last of all, or by the driver for a trial without one
"""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from archsearch.errors import StudyError
from archsearch.studies.files import records
from archsearch.studies.files.decisions import Decision
from archsearch.studies.files.outcomes import Outcome

IMPORTED = "imported"
"""The fact of a result that names the trial of an older study which it was taken from."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One evaluation of a trial: `tokens` and `fraction` of the budget seen, `values` by name, `seconds` of training
    so far; of trials that train as one model the share of each.

    at: when it was written, in seconds since 1970; None before it is.
    """

    attempt: int
    tokens: int
    fraction: float
    values: Mapping[str, float]
    seconds: float
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a trial. values: the objectives and whatever else was measured last; message: what went wrong, else
    empty.
    """

    outcome: Outcome
    attempt: int
    tokens: int
    values: Mapping[str, float]
    seconds: float
    message: str = ""
    details: Mapping[str, Any] | None = None

    def record(self) -> dict[str, object]:
        """The object in result.json."""
        return {
            "outcome": self.outcome.value,
            "attempt": self.attempt,
            "tokens": self.tokens,
            "values": dict(self.values),
            "seconds": self.seconds,
            "message": self.message,
            "details": dict(self.details or {}),
        }


CHOICES: records.Kinds = {records.EACH: (str, *records.NUMBER)}
WAYS: records.Kinds = {records.EACH: str}

MEASURED: records.Kinds = {
    "tokens": int,
    "fraction": records.NUMBER,
    "seconds": records.NUMBER,
    "values": records.VALUES,
}
"""A line of a trial's metrics."""

ENDED: records.Kinds = {
    **{
        "outcome": str,
        "attempt": int,
        "tokens": int,
        "seconds": records.NUMBER,
        "values": records.VALUES,
        "message": str,
    },
    "details": dict,
}
"""The end of a trial."""

PROPOSED: records.Kinds = {
    **dict.fromkeys(("origin", "sampler", "rule", "rule_hash", "variant_hash"), str),
    **dict.fromkeys(("layer", "config", "versions"), dict),
    **dict.fromkeys(("leader", "duplicate_of", "replicate_of"), (int, records.NONE)),
    "choices": CHOICES,
    "model": {"width": int, "mlp_ratio": records.NUMBER},
    "training": {"learning_rate": records.NUMBER},
    "budget": {
        **dict.fromkeys(("parameters", "flops_per_token", "state_bytes"), (int, str, records.NONE)),
        "tolerance": records.NUMBER,
    },
    "missed": records.VALUES,
    "seed": int,
}
"""A proposal, as far as it has these; that of a trial without a study has others."""

ASKED: records.Kinds = {
    "fixed": {"objectives": WAYS, "rungs": {"eta": int}, "seed": int, "total_tokens": int},
    "objectives": WAYS,
    "rung_tokens": [int],
    "baselines": {records.EACH: CHOICES},
    "versions": {records.EACH: str},
    "created": str,
}
"""The question of a study."""

BESIDES: records.Kinds = {
    "fixed": {"space_hash": str, "averaged": int, "part": str},
    "config": {
        **dict.fromkeys(("evaluations", "finalists"), int),
        **dict.fromkeys(("graphs", "checks", "tensorboard"), bool),
        "tasks": dict,
        "backend": str,
        "against": (str, records.NONE),
        "learning_rates": list,
        "sampler": {"kind": str},
        "resources": {"gpus": (*records.NUMBER, records.NONE), "concurrent": (int, records.NONE)},
    },
    "space": str,
    "study_name": str,
}
"""What else readers of the question look at, as far as it has these."""

POSED: records.Kinds = {
    **dict.fromkeys(("description", "objective", "data_hash"), str),
    "tokens": int,
    "baselines": records.VALUES,
}
"""A task of it."""

ENTERED: records.Kinds = {"hash": str, "role": str, "scores": records.VALUES}
"""An entrant of it."""

COMPARED: records.Kinds = {"against": str, "seeds": [int], "ties": records.VALUES}
"""What is fixed of entrants."""


class TrialDirectory:
    """One trial's directory; nothing here keeps a copy of what the files say."""

    def __init__(self, path: Path) -> None:
        """`path` need not exist yet."""
        self.path = path

    @property
    def checkpoints(self) -> Path:
        """Where the trial's checkpoints lie."""
        return self.path / "checkpoint"

    def proposal(self) -> dict[str, Any] | None:
        """The object in trial.json; None before it is written."""
        path = self.path / "trial.json"
        record = records.read_json(path)
        if record is not None:
            with records.read_as_written(path):
                records.check_kinds(record, PROPOSED, partly=True)
        return record

    def write_proposal(self, record: Mapping[str, object]) -> None:
        """Write trial.json, the directory with it."""
        self.path.mkdir(parents=True, exist_ok=True)
        records.write_json(self.path / "trial.json", record)

    def attempt(self) -> int:
        """The attempt that may write, from 1; 0 before the first."""
        path = self.path / "attempt.json"
        record = records.read_json(path)
        with records.read_as_written(path):
            return 0 if record is None else int(cast(int, record["attempt"]))

    def raise_fence(self, attempt: int) -> None:
        """From now on only `attempt` may write."""
        records.write_json(self.path / "attempt.json", {"attempt": attempt})

    def write_presence(self, attempt: int) -> None:
        """Say that the worker of an attempt has begun, where and when."""
        record = {"pid": os.getpid(), "host": socket.gethostname(), "at": time.time()}
        records.write_json(self.path / f"worker-{attempt}.json", record, durable=False)

    def is_present(self, attempt: int) -> bool:
        """Whether the worker of an attempt has begun."""
        return (self.path / f"worker-{attempt}.json").exists()

    def began(self, attempt: int) -> float | None:
        """When the worker of an attempt began, in seconds since 1970; None if it has not."""
        path = self.path / f"worker-{attempt}.json"
        record = records.read_json(path)
        with records.read_as_written(path):
            return None if record is None or "at" not in record else float(cast(float, record["at"]))

    def decision(self, tokens: int) -> bool | None:
        """Whether the trial is to stop at the rung of `tokens`; None while undecided."""
        path = self.path / f"decision-{tokens}.json"
        record = records.read_json(path)
        with records.read_as_written(path):
            return None if record is None else bool(record["stop"])

    def write_decision(self, decision: Decision) -> None:
        """Let the worker go on, or stop it; a lost file is written again from the log of the rungs."""
        records.write_json(self.path / f"decision-{decision.tokens}.json", {"stop": decision.stop}, durable=False)

    def append_measurement(self, measurement: Measurement) -> None:
        """Add a line to the attempt's own metrics file."""
        line = {name: getattr(measurement, name) for name in ("tokens", "fraction", "seconds")}
        records.append_json(
            self.path / f"metrics-{measurement.attempt}.jsonl",
            {**line, "values": dict(measurement.values), "at": time.time()},
        )

    def curve(self) -> list[Measurement]:
        """Every evaluation by rising tokens; where attempts repeat one, the latest attempt's."""
        merged: dict[int, Measurement] = {}
        for path in sorted(self.path.glob("metrics-[0-9]*.jsonl"), key=_attempt_of):
            for number, line in enumerate(records.read_lines(path), start=1):
                with records.read_as_written(path, f"line {number}"):
                    records.check_kinds(line, MEASURED)
                    measurement = Measurement(attempt=_attempt_of(path), **cast(dict[str, Any], line))
                merged[measurement.tokens] = measurement
        return [merged[tokens] for tokens in sorted(merged)]

    def result(self) -> Result | None:
        """The trial's end; None while it has none, or while the one there is of an attempt shut out by the fence."""
        path = self.path / "result.json"
        record = records.read_json(path)
        if record is None:
            return None
        with records.read_as_written(path):
            records.check_kinds(record, ENDED)
            fields: dict[str, Any] = {**record, "outcome": Outcome(record["outcome"])}
            result = Result(**fields)
        return result if result.attempt == self.attempt() else None

    def write_result(self, result: Result) -> None:
        """End the trial."""
        records.write_json(self.path / "result.json", result.record())

    def check(self) -> None:
        """Whether all that a driver reads can be read, and the newest checkpoint of a trial without an end has its
        evaluation. DamagedError.
        """
        self.proposal()
        self.attempt()
        curve = self.curve()
        if self.result() is None:
            kept = (records.read_json(self.checkpoints / "latest.json") or {}).get("tokens", 0)
            if isinstance(kept, int) and kept > (curve[-1].tokens if curve else 0):
                raise self.unmeasured(kept)

    def unmeasured(self, tokens: int) -> records.DamagedError:
        """What is wrong with a trial whose checkpoint at so many tokens lacks its evaluation, which is written first:
        values that were measured are gone, so that nobody can say what the trial is worth.
        """
        return records.DamagedError(
            f"{self.path} has a checkpoint at {tokens:,} tokens and no evaluation of it: restore its metrics from a "
            f"copy of the study, or remove {self.checkpoints} to train it again"
        )

    def write_log(self, attempt: int, text: str) -> None:
        """Keep an attempt's traceback."""
        records.write_text(self.path / f"log-{attempt}.txt", text)


class StudyDirectory:
    """A study's directory and its trials."""

    def __init__(self, path: Path) -> None:
        """`path` need not exist yet."""
        self.path = path
        self.journal = path / "optuna.journal"
        self.lock = path / "driver.lock"
        self.rungs = path / "rungs.jsonl"
        self.checks = path / "checks.jsonl"
        self.report = path / "report"
        self._stop = path / "stop.json"
        self._spent = path / "spent.json"

    def stop_asked(self) -> bool:
        """Whether the study is to stop."""
        return self._stop.exists()

    def ask_to_stop(self, *, now: bool) -> None:
        """Ask the driver and the workers to stop; now: without waiting for the trials' next checkpoints."""
        records.write_json(self._stop, {"now": now})

    def stop_is_urgent(self) -> bool:
        """Whether the study is to stop without waiting."""
        return bool((records.read_json(self._stop) or {}).get("now", False))

    def forget_stop(self) -> None:
        """Take the wish back."""
        self._stop.unlink(missing_ok=True)

    def write_spent(self, variants: int) -> None:
        """Note that there is nothing left to propose."""
        records.write_json(self._spent, {"variants": variants})

    def is_spent(self) -> bool:
        """Whether every variant of the space was tried."""
        return self._spent.exists()

    def plan(self) -> dict[str, Any]:
        """The object in study.json. StudyError if `path` is no study."""
        record = records.read_json(self.path / "study.json")
        if record is None:
            raise StudyError(
                f"a study's directory holds study.json; {self.path} does not; start one with archsearch study run"
            )
        with records.read_as_written(self.path / "study.json"):
            _check_question(record)
        return record

    def write_plan(self, record: Mapping[str, object]) -> None:
        """Write study.json, the directory with it."""
        (self.path / "trials").mkdir(parents=True, exist_ok=True)
        records.write_json(self.path / "study.json", record)

    def exists(self) -> bool:
        """Whether a study was begun here."""
        return (self.path / "study.json").exists()

    def trial(self, number: int) -> TrialDirectory:
        """The directory of trial `number`, which need not exist yet."""
        return TrialDirectory(self.path / "trials" / f"{number:05d}")

    def trials(self) -> dict[int, TrialDirectory]:
        """The trials with a proposal, by number. StudyError if one is gone: they are begun in order."""
        found = sorted(
            int(path.parent.name) for path in (self.path / "trials").glob("*/trial.json") if path.parent.name.isdigit()
        )
        whole = (self.path / "trials").is_dir()
        lost = next((number for at, number in enumerate(found) if at != number), None)
        if lost is not None or (self.exists() and not whole):
            gone = self.path / "trials" if not whole else self.trial(found.index(lost or 0)).path / "trial.json"
            raise StudyError(f"{gone} is gone: restore it from a copy of the study")
        return {number: self.trial(number) for number in found}


def _check_question(record: Mapping[str, Any]) -> None:
    """ValueError where study.json has something else than was written."""
    records.check_kinds(record, ASKED)
    records.check_kinds(record, BESIDES, partly=True)
    fixed = record["fixed"]
    for name, kind in (("tasks", POSED), ("entrants", ENTERED)):
        told = {records.EACH: kind, **dict.fromkeys(fixed.get(name, ()), kind)}
        records.check_kinds(record.get(name, {}), told, f"{name}.")
    if record.get("entrants"):
        records.check_kinds(fixed, COMPARED, "fixed.")


def _attempt_of(path: Path) -> int:
    return int(path.stem.removeprefix("metrics-"))
