"""Where Optuna keeps a study: the journal, databases, and what opens them besides."""

import io
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from archsearch.errors import StudyError
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.search.storage import open_storage, without_password

DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]


def _play(toy: ModuleType, threads: Any, directory: Path, storage: str, trials: int = 8) -> list[tuple[Any, ...]]:
    toy.study(directory, lambda: threads(toy.ToyBody(0.0)), trials=trials, storage=storage)
    return summary(directory)


def summary(directory: Path) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for number, trial in StudyDirectory(directory).trials().items():
        result, proposal = trial.result(), trial.proposal() or {}
        assert result is not None
        rows.append((number, proposal["choices"], proposal["sampler"], result.outcome, dict(result.values)))
    return rows


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL server of these tests' own, on a socket in a directory of its own."""
    programs = {name: shutil.which(name) or "" for name in ("initdb", "postgres")}
    # PostgreSQL refuses to run as root, and nobody cannot look into pytest's directories
    as_user = ["setpriv", "--reuid=nobody", "--clear-groups"] if os.getuid() == 0 else []
    with tempfile.TemporaryDirectory() as home:
        if as_user:
            shutil.chown(home, "nobody")
        data = f"{home}/data"
        subprocess.run(
            [*as_user, programs["initdb"], "-D", data, "-U", "study", "-A", "trust", "-N"],
            check=True,
            capture_output=True,
            cwd="/",
        )
        command = [*as_user, programs["postgres"], "-D", data, "-k", home, "-h", "", "-F"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd="/") as server:
            try:
                assert server.stderr is not None
                assert any("ready to accept connections" in line for line in server.stderr)
                yield f"postgresql+psycopg://study@/postgres?host={home}"
            finally:
                server.terminate()


@pytest.mark.parametrize("kind", DATABASES)
def test_a_database_proposes_what_the_journal_proposes_and_resumes(
    toy: ModuleType, threads: Any, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/optuna.db" if kind == "sqlite" else str(request.getfixturevalue("postgresql"))
    journal = _play(toy, threads, tmp_path / "journal", "journal", 7)
    _play(toy, threads, tmp_path / "study", url, 3)
    assert _play(toy, threads, tmp_path / "study", url, 7) == journal
    assert not (tmp_path / "study/optuna.journal").exists()
    assert len(_play(toy, threads, tmp_path / "other", url, 2)) >= 3, "a second study in the same database"
    kept = open_storage(url, tmp_path)
    names = [study.study_name for study in kept.storage.get_all_studies()]
    kept.close()
    assert [name.rsplit("-", 1)[0] for name in names] == ["study", "other"]


def test_a_study_is_not_gone_on_with_in_another_storage(toy: ModuleType, threads: Any, tmp_path: Path) -> None:
    _play(toy, threads, tmp_path / "study", "journal", 2)
    with pytest.raises(StudyError) as error:
        _play(toy, threads, tmp_path / "study", f"sqlite:///{tmp_path}/optuna.db", 4)
    assert str(error.value) == (
        f"{tmp_path}/study holds trial 2, but sqlite:///{tmp_path}/optuna.db knows 0 trials of it; "
        "name the storage that the study was begun with"
    )


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nonsense", "Could not parse SQLAlchemy URL from given URL string"),
        ("sqlite:////nonexistent/x.db", "unable to open database file"),
        ("sqlit:///x.db", "Can't load plugin: sqlalchemy.dialects:sqlit"),
        ("mysql://user:secret@host/x", "its driver is not installed (pip install 'archsearch[postgresql]'"),
        ("postgresql+psycopg://user:secret@127.0.0.1:1/x", "connection failed: connection to server at"),
    ],
)
def test_a_storage_that_does_not_answer_is_told_in_one_line(tmp_path: Path, url: str, reason: str) -> None:
    with pytest.raises(StudyError) as error:
        open_storage(url, tmp_path / "optuna.journal")
    told = str(error.value)
    shown = without_password(url)
    assert told.startswith(f"storage must be journal or the URL of a database that answers; got {shown}: ")
    assert reason in told and "\n" not in told and "secret" not in told
    assert list(tmp_path.iterdir()) == []


def test_the_dashboard_shows_every_trial_of_the_journal(toy: ModuleType, threads: Any, tmp_path: Path) -> None:
    """What `optuna-dashboard STUDY/optuna.journal` serves."""
    from optuna_dashboard import wsgi
    from optuna_dashboard._cli import get_storage

    rows = _play(toy, threads, tmp_path / "study", "journal", 6)
    app = wsgi(get_storage(str(tmp_path / "study/optuna.journal"), storage_class=None))
    (found,) = _ask(app, "/api/studies")["study_summaries"]
    detail = _ask(app, f"/api/studies/{found['study_id']}", "after=0")
    assert [trial["number"] for trial in detail["trials"]] == [row[0] for row in rows]
    states = {"complete": "Complete", "stopped": "Pruned", "duplicate": "Fail"}
    assert [trial["state"] for trial in detail["trials"]] == [states[row[3].value] for row in rows]
    complete = [trial for trial in detail["trials"] if trial["state"] == "Complete"]
    assert all(len(trial["values"]) == 2 for trial in complete)
    assert found["study_name"].startswith("study-")


def _ask(app: Any, path: str, query: str = "") -> Any:
    """The JSON that a WSGI application answers."""
    status: list[str] = []
    environment = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": query, "wsgi.input": io.BytesIO()}
    body = b"".join(app(environment, lambda code, headers, info=None: status.append(code)))
    assert status[0].startswith("200"), (status, body)
    return json.loads(body)


def test_evaluations_can_be_read_by_tensorboard(toy: ModuleType, threads: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    plan = toy.plan(details={"config": {"tensorboard": True}})
    toy.study(tmp_path / "study", lambda: threads(toy.ToyBody(0.0)), trials=1, plan=plan)
    trial = StudyDirectory(tmp_path / "study").trial(0)
    events = EventAccumulator(str(trial.path / "tensorboard"))
    events.Reload()
    assert sorted(cast(list[str], events.Tags()["scalars"])) == ["cost", "loss", "training_seconds"]
    read = [(event.step, event.value) for event in events.Scalars("loss")]
    assert read == [(m.tokens, pytest.approx(m.values["loss"])) for m in trial.curve()]
