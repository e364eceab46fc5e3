"""What `quickstart.py` holds the quickstart study against: each promise that is broken is told."""

import dataclasses
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from archsearch.studies.evidence.rows import Evidence, Row
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.tasks.direction import Direction

GIB = 2**30


def row(number: int, origin: str, recall: float, bits: float) -> Row:
    values = {"recall": recall, "bits_per_byte": bits}
    kept: dict[str, Any] = {"choices": {"number": number}, "rule": "", "rule_hash": "", "details": {}, "curve": []}
    ends: dict[str, Any] = {"outcome": Outcome.COMPLETE, "attempt": 1, "tokens": 8, "seconds": 1.0, "message": ""}
    return Row(number=number, origin=origin, sampler="", variant_hash="", values=values, **kept, **ends)


NAMES = ("gated_delta_net", "q_delta", "eda")
ROWS = [
    *(row(number, f"baseline:{name}", 0.6, 4.0) for number, name in enumerate(NAMES)),
    *(row(number, "proposal", 0.7, 3.9) for number in range(3, 13)),
]
TASKS = {
    "mqar": {"objective": "recall", "baselines": {"chance (any value)": 0.02, "chance (shown)": 0.04}},
    "text": {"objective": "bits_per_byte", "baselines": {"byte n-gram, order 1": 4.2, "byte n-gram, order 4": 2.9}},
}
WAYS = {"recall": Direction.MAXIMIZE, "bits_per_byte": Direction.MINIMIZE}
KEPT = Evidence({"tasks": TASKS, "baselines": {}}, WAYS, ROWS)


def without(number: int, **changes: Any) -> Evidence:
    """The same study with one row changed."""
    rows = [dataclasses.replace(each, **changes) if each.number == number else each for each in ROWS]
    return dataclasses.replace(KEPT, rows=rows)


def broken(quickstart: ModuleType, evidence: Evidence, minutes: float = 5.0, gib: float = 2.0) -> list[str]:
    return [each.text for each in quickstart.promises(evidence, 60 * minutes, int(gib * GIB)) if not each.holds]


def test_a_study_that_keeps_its_promises_breaks_none(quickstart: ModuleType) -> None:
    assert broken(quickstart, KEPT) == []
    assert broken(quickstart, KEPT, minutes=8.1) == ["under 8 minutes"]
    assert broken(quickstart, KEPT, gib=6.1) == ["under 6 GiB"]


@pytest.mark.parametrize(
    ("number", "changes", "promise"),
    [
        (0, {"values": {"recall": 0.4, "bits_per_byte": 4.0}}, "gated_delta_net recalls at least 0.5"),
        (0, {"values": {"recall": 0.6, "bits_per_byte": 4.3}}, "gated_delta_net under the bigram's 4.200 bits"),
        (4, {"values": {"recall": 0.9, "bits_per_byte": 4.3}}, "the winner under the bigram's 4.200 bits"),
        (2, {"outcome": Outcome.STOPPED}, "the baselines in full"),
        (5, {"outcome": None}, "every trial has an end"),
        (5, {"outcome": Outcome.DUPLICATE}, "at least 10 trials beside the baselines"),
    ],
)
def test_a_broken_promise_is_told(quickstart: ModuleType, number: int, changes: Any, promise: str) -> None:
    assert promise in broken(quickstart, without(number, **changes))


def test_too_few_trials_and_too_much_chance_are_told(quickstart: ModuleType) -> None:
    assert "at least 10 trials beside the baselines" in broken(quickstart, dataclasses.replace(KEPT, rows=ROWS[:-1]))
    tasks = {**TASKS, "mqar": {"objective": "recall", "baselines": {"chance (any value)": 0.06}}}
    assert broken(quickstart, dataclasses.replace(KEPT, plan={"tasks": tasks})) == ["chance under 0.05"]


def test_memory_is_that_of_a_process_and_of_what_it_started(quickstart: ModuleType) -> None:
    holds = "import sys; held = b'x' * 2**26; print(1, flush=True); sys.stdin.read()"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {holds!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", starts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        assert 2**26 < quickstart.memory_of(process.pid) < 2**27
        process.communicate("")
