"""The toy study as a module, and an executor of threads for it."""

import importlib.util
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from archsearch.studies.files import records
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


@pytest.fixture(autouse=True)
def unwatched() -> Iterator[None]:
    before = records.watch
    yield
    records.watch = before
