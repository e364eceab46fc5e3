"""The toy study as a module, an executor of threads for it, and what became of such studies."""

import importlib.util
import os
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial

import archsearch
from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.workers.clerk import Assignment, Body, work
from archsearch.studies.workers.executor import Departure


class ThreadExecutor:
    """Attempts as threads of this process: quick, and only good for bodies that end by themselves."""

    def __init__(self, body: Body, slots: int = 1) -> None:
        self.slots = slots
        self.started: list[Assignment] = []
        self.killed: list[int] = []
        self._body = body
        self._over: queue.Queue[Departure] = queue.Queue()

    def start(self, assignment: Assignment) -> None:
        self.started.append(assignment)
        threading.Thread(target=self._run, args=(assignment,), daemon=True).start()

    def departures(self, timeout: float) -> list[Departure]:
        try:
            return [self._over.get(timeout=timeout)]
        except queue.Empty:
            return []

    def kill(self, number: int) -> None:
        self.killed.append(number)

    def close(self) -> None:
        """Threads end by themselves."""

    def _run(self, assignment: Assignment) -> None:
        cause = ""
        try:
            work(assignment, self._body)
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
        self._over.put(Departure(assignment, cause))


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def toy() -> ModuleType:
    return _load("toy_study")


@pytest.fixture(scope="session")
def killing(toy: ModuleType) -> ModuleType:
    return _load("kill_study")


@pytest.fixture(scope="session")
def overhead(toy: ModuleType) -> ModuleType:
    return _load("overhead")


@pytest.fixture(scope="session")
def quickstart() -> ModuleType:
    return _load("quickstart")


@pytest.fixture(scope="session")
def sharing() -> ModuleType:
    return _load("shared_trial")


@pytest.fixture(scope="session")
def thread_executor() -> type[ThreadExecutor]:
    return ThreadExecutor


@pytest.fixture
def threads(thread_executor: type[ThreadExecutor]) -> type[ThreadExecutor]:
    return thread_executor


class ToyRuns:
    """Runs toy studies in one place, and reads what became of them."""

    def __init__(self, toy: ModuleType, place: Path) -> None:
        self._toy, self._place = toy, place

    def __call__(
        self, body: Body | None = None, *, trials: int = 8, slots: int = 1, directory: str = "study", **options: Any
    ) -> ThreadExecutor:
        executor = ThreadExecutor(body or self._toy.ToyBody(0.0), slots)
        self._toy.study(self._place / directory, lambda: executor, trials=trials, **options)
        return executor

    def told(self, path: Path) -> list[FrozenTrial]:
        """What Optuna knows."""
        storage = JournalStorage(JournalFileBackend(str(path / "optuna.journal")))
        return optuna.load_study(study_name=None, storage=storage).trials

    def outcomes(self, path: Path) -> list[str]:
        """How the trials ended that have."""
        found = StudyDirectory(path).trials().values()
        return [result.outcome.value for trial in found if (result := trial.result()) is not None]

    def summary(self, path: Path) -> list[tuple[Any, ...]]:
        """Number, choices, outcome, tokens and values of every trial; each has ended."""
        rows: list[tuple[Any, ...]] = []
        for number, trial in StudyDirectory(path).trials().items():
            result, proposal = trial.result(), trial.proposal()
            assert result is not None and proposal is not None
            rows.append((number, proposal["choices"], result.outcome, result.tokens, dict(result.values)))
        return rows


@pytest.fixture
def run(toy: ModuleType, tmp_path: Path) -> ToyRuns:
    return ToyRuns(toy, tmp_path)


@pytest.fixture(scope="module", autouse=True)
def known_to_processes() -> Iterator[None]:
    """What tests run in processes of its own finds this archsearch, where it is not installed too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(archsearch.__file__).parents[1]), prepend=os.pathsep)
        yield


@pytest.fixture(autouse=True)
def unwatched() -> Iterator[None]:
    before = records.watch
    yield
    records.watch = before
