"""How far a study has come: the rate and the time left are those of the clock, however many trials share a model."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from archsearch.studies.design.plan import Plan
from archsearch.studies.evidence.status import read_status
from archsearch.studies.files.directory import Result, StudyDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.search.rungs import RungOptions
from archsearch.studies.search.samplers import SamplerOptions
from archsearch.studies.tasks.direction import Direction

CONFIG = """
space: delta_family
directory: study
tasks: {mqar: {length: 16, pairs: 2, vocabulary: 16, tokens: 1000}}
trials: 8
resources: {workers: local, cpus: 1, concurrent: 4, together: 4}
"""


@pytest.fixture
def study(tmp_path: Path) -> StudyDirectory:
    study = StudyDirectory(tmp_path)
    plan = Plan(
        {"recall": Direction.MAXIMIZE}, RungOptions(count=1), SamplerOptions(), seed=0, total_tokens=1000, holes=1
    )
    study.write_plan({**plan.record(), "tasks": {}})
    (tmp_path / "config.yaml").write_text(CONFIG)
    return study


def begin(study: StudyDirectory, number: int, began: float, lines: Sequence[tuple[int, float]]) -> None:
    """A trial of a group of four: of each line (tokens, when); its own seconds are a quarter of the clock's."""
    trial = study.trial(number)
    trial.write_proposal({"number": number, "origin": "proposal", "variant_hash": str(number), "choices": {}})
    trial.raise_fence(1)
    (trial.path / "worker-1.json").write_text(json.dumps({"pid": 1, "host": "here", "at": began}))
    kept = [
        {"tokens": tokens, "fraction": tokens / 1000, "seconds": (at - began) / 4, "values": {"recall": 0.5}, "at": at}
        for tokens, at in lines
    ]
    (trial.path / "metrics-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))


def end(study: StudyDirectory, number: int, seconds: float) -> None:
    study.trial(number).write_result(Result(Outcome.COMPLETE, 1, 1000, {"recall": 0.5}, seconds))


def test_the_rate_of_a_trial_in_a_group_is_that_of_the_clock(study: StudyDirectory) -> None:
    now = time.time()
    for number in range(4):
        begin(study, number, now - 40, [(250, now - 20), (500, now - 10)])
    for trial in read_status(study).running:
        assert trial["tokens_per_second"] == pytest.approx(25)
        assert trial["seconds_left"] == pytest.approx(500 / 25 - 10, abs=1)


def test_before_the_second_evaluation_the_rate_counts_from_the_beginning(study: StudyDirectory) -> None:
    now = time.time()
    begin(study, 0, now - 40, [(250, now - 20)])
    begin(study, 1, now - 40, [])
    first, second = read_status(study).running
    assert first["tokens_per_second"] == pytest.approx(12.5) and first["seconds_left"] == pytest.approx(40, abs=1)
    assert (second["tokens_per_second"], second["seconds_left"]) == (None, None)


def test_the_time_left_of_groups_is_not_divided_by_their_members(study: StudyDirectory) -> None:
    """Four of eight trials took 40 s by the clock, side by side: the other four take as long."""
    now = time.time()
    for number in range(4):
        begin(study, number, now - 40, [(500, now - 20), (1000, now)])
        end(study, number, 10.0)
    assert read_status(study).seconds_left == pytest.approx(40)


def test_a_trial_that_was_begun_again_goes_at_its_new_pace(study: StudyDirectory) -> None:
    now = time.time()
    begin(study, 0, now - 400, [(100, now - 200)])
    trial = study.trial(0)
    trial.raise_fence(2)
    (trial.path / "worker-2.json").write_text(json.dumps({"pid": 1, "host": "here", "at": now - 10}))
    line = {"tokens": 600, "fraction": 0.6, "seconds": 5.0, "values": {"recall": 0.5}, "at": now}
    (trial.path / "metrics-2.jsonl").write_text(json.dumps(line) + "\n")
    assert read_status(study).running[0]["tokens_per_second"] == pytest.approx(50)


def test_files_without_times_are_read_by_their_own_seconds(study: StudyDirectory) -> None:
    now = time.time()
    begin(study, 0, now - 40, [(1000, now)])
    end(study, 0, 10.0)
    path = study.trial(0).path
    (path / "worker-1.json").write_text(json.dumps({"pid": 1, "host": "here"}))
    assert read_status(study).seconds_left == pytest.approx(7 * 10 / 4)
