"""A cluster that is gone ends a study in one line and costs it nothing; `test_kill.py` kills a real one."""

import socket
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from archsearch.errors import StudyError
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.lock import is_held
from archsearch.studies.workers import ray_head
from archsearch.studies.workers.clerk import Assignment
from archsearch.studies.workers.executor import WorkersLost
from archsearch.studies.workers.ray_head import Head


@pytest.mark.parametrize(
    ("elsewhere", "way"),
    [
        (True, "start a cluster and go on with archsearch study resume {} resources.ray_address=HOST:PORT"),
        (False, "go on with archsearch study resume {}"),
    ],
)
def test_a_study_whose_workers_are_gone_says_how_to_go_on_and_does(
    toy: ModuleType, thread_executor: Any, tmp_path: Path, *, elsewhere: bool, way: str
) -> None:
    class Vanishing(thread_executor):
        def start(self, assignment: Assignment) -> None:
            if len(self.started) == 3:
                raise WorkersLost("the head does not answer", elsewhere=elsewhere)
            super().start(assignment)

    study = StudyDirectory(tmp_path / "study")
    with pytest.raises(StudyError) as error:
        toy.study(study.path, lambda: Vanishing(toy.ToyBody(0.001)), trials=4)
    assert str(error.value) == f"the head does not answer; nothing is lost: {way.format(study.path)}"
    assert not is_held(study.lock)
    toy.study(study.path, lambda: thread_executor(toy.ToyBody(0.001)), trials=4)
    toy.study(tmp_path / "whole", lambda: thread_executor(toy.ToyBody(0.001)), trials=4)
    whole = StudyDirectory(tmp_path / "whole").trials()
    assert study.trials().keys() == whole.keys()
    for number, trial in study.trials().items():
        ours, theirs = trial.result(), whole[number].result()
        assert ours is not None and theirs is not None and ours.values == theirs.values


def test_a_head_is_given_up_only_when_it_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_head, "PATIENCE", 0.02)
    monkeypatch.setattr(ray_head, "SECONDS_BETWEEN_TRIES", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        Head(address, elsewhere=True).check()
    for elsewhere, what in ((True, f"the head of the Ray cluster at {address}"), (False, "Ray on this machine")):
        head = Head(address, elsewhere=elsewhere)
        with pytest.raises(WorkersLost) as lost:
            head.check()
        assert str(lost.value) == f"{what} does not answer" and head.is_lost

    answered = iter([False, True])
    monkeypatch.setattr(ray_head, "PATIENCE", 60.0)
    monkeypatch.setattr(ray_head, "answers", lambda address: next(answered))
    Head(address, elsewhere=True).check()
