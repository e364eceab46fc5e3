"""Files are whole or absent, whatever moment the writer dies at."""

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from archsearch.errors import StudyError
from archsearch.studies.evidence.rows import read_evidence
from archsearch.studies.files import records
from archsearch.studies.files.decisions import read_decisions
from archsearch.studies.files.directory import StudyDirectory, TrialDirectory


class Fault(Exception):
    pass


def _fault(path: Path) -> None:
    raise Fault(path.name)


def test_a_write_that_dies_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    records.write_json(path, {"x": 1})
    records.watch = _fault
    with pytest.raises(Fault):
        records.write_json(path, {"x": 2})
    assert records.read_json(path) == {"x": 1}


def test_an_absent_file_reads_as_none_and_no_lines(tmp_path: Path) -> None:
    assert records.read_json(tmp_path / "none.json") is None
    (tmp_path / "file").touch()
    assert records.read_json(tmp_path / "file" / "none.json") is None
    assert records.read_lines(tmp_path / "none.jsonl") == []
    assert not records.cut_torn_tail(tmp_path / "none.jsonl")


@pytest.mark.parametrize("torn", [1, 5, 9])
def test_a_torn_last_line_is_left_out_and_can_be_cut(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "a.jsonl"
    records.append_json(path, {"line": 1})
    records.append_json(path, {"line": 2})
    path.write_bytes(path.read_bytes()[:-torn])
    assert records.read_lines(path) == [{"line": 1}]
    assert records.cut_torn_tail(path)
    records.append_json(path, {"line": 3})
    assert records.read_lines(path) == [{"line": 1}, {"line": 3}]
    assert (tmp_path / "a.jsonl.torn").exists()


def test_numbers_that_json_does_not_know_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.append_json(tmp_path / "a.jsonl", {"loss": float("nan")})
    assert records.read_lines(tmp_path / "a.jsonl") == []


def test_nothing_but_the_file_stays_behind(tmp_path: Path) -> None:
    records.write_json(tmp_path / "a.json", {"x": [1, 2]})
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [1, 2]}


def test_a_full_disk_leaves_the_old_file_and_no_half_of_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    records.write_json(tmp_path / "a.json", {"x": 1})
    monkeypatch.setattr(os, "fsync", full)
    for write, name in ((records.write_json, "a.json"), (records.append_json, "b.jsonl")):
        with pytest.raises(OSError, match="No space left") as error:
            write(tmp_path / name, {"x": 2})
        assert error.value.filename == str(tmp_path / name), "what the disk is too full for is named"
    (tmp_path / "b.jsonl").unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert records.read_json(tmp_path / "a.json") == {"x": 1}


def test_a_file_that_holds_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(StudyError) as error:
        records.read_json(tmp_path / "a.json")
    assert str(error.value) == (
        f"{tmp_path}/a.json must hold JSON objects; it is a list: restore it from a copy of the study"
    )
    (tmp_path / "a.jsonl").write_text('{"line": 1}\n{"line": \n{"line": 3}\n')
    with pytest.raises(StudyError, match=r"a\.jsonl must hold JSON objects; line 2 is no JSON: restore it"):
        records.read_lines(tmp_path / "a.jsonl")


ENDED = (
    '{"outcome": "complete", "attempt": 1, "tokens": 2, "seconds": 1.0, "message": "", "details": {}, "values": {}, %s}'
)


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("attempt.json", "{}", lambda trial: trial.attempt()),
        ("result.json", "{}", lambda trial: trial.result()),
        ("result.json", '{"outcome": "splendid"}', lambda trial: trial.result()),
        ("result.json", ENDED % '"tokens": "many"', lambda trial: trial.result()),
        ("result.json", ENDED % '"tokens": true', lambda trial: trial.result()),
        ("result.json", ENDED % '"values": {"recall": "high"}', lambda trial: trial.result()),
        ("result.json", ENDED % '"values": [1]', lambda trial: trial.result()),
        ("trial.json", '{"choices": 5}', lambda trial: trial.proposal()),
        ("metrics-1.jsonl", "{}\n", lambda trial: trial.curve()),
        ("decision-64.json", "{}", lambda trial: trial.decision(64)),
        ("rungs.jsonl", "{}\n", lambda trial: read_decisions(trial.path / "rungs.jsonl")),
    ],
)
def test_a_file_that_lacks_what_was_written_is_named(
    tmp_path: Path, name: str, text: str, read: Callable[[TrialDirectory], object]
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(StudyError) as error:
        read(TrialDirectory(tmp_path))
    said = str(error.value)
    assert (
        re.match(r".* must hold JSON objects; (one|line 1) lacks what was written \(", said)
        and str(tmp_path / name) in said
    )
    assert said.endswith("): restore it from a copy of the study") and "\n" not in said


QUESTION = (
    '{"fixed": {}, "baselines": {}, "versions": {}, "created": "", "objectives": {"loss": "minimize"}, '
    '"rung_tokens": [8], %s}'
)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("study.json", "{}"),
        ("study.json", '{"objectives": {"recall": "up"}}'),
        ("study.json", QUESTION % '"rung_tokens": ["all"]'),
        ("study.json", QUESTION % '"tasks": {"mqar": 5}'),
        ("study.json", QUESTION % '"tasks": {"mqar": {"objective": "recall", "description": ""}}'),
    ],
)
def test_a_study_without_its_question_is_named(tmp_path: Path, path: str, text: str) -> None:
    (tmp_path / path).write_text(text)
    with pytest.raises(StudyError, match=r"study\.json must hold JSON objects; one lacks what was written"):
        read_evidence(StudyDirectory(tmp_path))
