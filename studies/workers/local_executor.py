"""Attempts in processes of this machine, without a cluster: trials of one structure share a process, and a GPU too.

A process serves one group of trials after another and ends with the one that started it.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, cast

import torch

from archsearch.errors import StudyError, described
from archsearch.studies.workers.body import TrainingBody
from archsearch.studies.workers.clerk import Assignment
from archsearch.studies.workers.crew import gathered, has_result, structure_at, work_together
from archsearch.studies.workers.executor import Departure, Resources, members

CONTEXT = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
CLOSING_SECONDS = 10.0


@dataclass(eq=False, slots=True)
class _Worker:
    """A process and its GPU, -1 for none. group: what it works on; ended: numbers of those that have departed;
    compiled: structures that it has trained."""

    process: Any
    connection: Connection
    alive: Connection
    device: int
    group: tuple[Assignment, ...] = ()
    ended: set[int] = field(default_factory=set[int])
    compiled: set[str] = field(default_factory=set[str])

    def running(self) -> list[Assignment]:
        """The trials of its group that have not ended."""
        return [assignment for assignment in self.group if assignment.number not in self.ended]


class LocalExecutor:
    """Trials by shares of this machine's cores or GPUs."""

    def __init__(self, resources: Resources, devices: int | None = None) -> None:
        """Nothing is started yet. devices: GPUs to use, by default all. StudyError if a trial can never fit."""
        devices = torch.cuda.device_count() if devices is None else devices
        share = min(1.0, devices) if resources.gpus is None else resources.gpus
        a_device = max(1, round(1 / share)) if share else (os.cpu_count() or 1) // resources.cpus
        self._body = TrainingBody(resources.cpus, share)
        self._devices = list(range(devices)) if share else [-1]
        self._fits = _fits(a_device * len(self._devices), resources, share)
        self._together = members(resources, share)
        self._came: list[Assignment] = []
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []

    @property
    def slots(self) -> int:
        """How many attempts run at a time; what a trial leaves free in a group that goes on is not free yet."""
        return self._fits - sum(len(worker.ended) for worker in self._busy if worker.running())

    def warm_up(self, workers: int) -> None:
        """Have so many processes ready on each device before they are needed."""
        started = [self._new_worker(device) for device in self._devices for _ in range(workers)]
        for worker in started:
            worker.connection.send(None)
        for worker in started:
            worker.connection.recv()
        self._idle += started

    def processes(self) -> list[int]:
        """The process ids of the workers that are busy."""
        return [int(worker.process.pid) for worker in self._busy]

    def start(self, assignment: Assignment) -> None:
        """Begin an attempt: together with others of its structure as soon as there are enough of them, and in any case
        at the next look for departures."""
        self._came.append(assignment)
        full = [group for group in gathered(self._came, self._together) if len(group) == self._together]
        if self._together > 1 and full:
            self._came = [each for each in self._came if each not in full[0]]
            self._begin(full[0])

    def departures(self, timeout: float) -> list[Departure]:
        """The attempts that ended; waits up to `timeout` seconds for the end of a group."""
        self._begin_groups()
        done = multiprocessing.connection.wait([worker.connection for worker in self._busy], timeout)
        over: list[Departure] = []
        for worker in list(self._busy):
            if worker.connection in done:
                over += self._collect(worker)
            else:
                over += self._ended(worker)
        return over

    def kill(self, number: int) -> None:
        """Kill the process that carries trial `number`; the others of its group depart as lost."""
        self._came = [assignment for assignment in self._came if assignment.number != number]
        for worker in self._busy:
            if number in [assignment.number for assignment in worker.running()]:
                worker.ended.add(number)
                worker.process.kill()

    def close(self) -> None:
        """End every process."""
        for worker in [*self._busy, *self._idle]:
            worker.process.kill()
        for worker in [*self._busy, *self._idle]:
            self._bury(worker)
        self._busy, self._idle, self._came = [], [], []

    def _begin_groups(self) -> None:
        """Start what came since the last look: trials of one structure together, parted only among devices that have
        nothing to do. Two halves of a group on devices that are busy take the time of two groups.
        """
        if not self._came:
            return
        self._take_back()
        idle = sum(self._load(device) == 0 for device in self._devices)
        most = min(self._together, -(-len(self._came) // max(1, idle)))
        groups, self._came = gathered(self._came, most), []
        for group in groups:
            self._begin(group)

    def _begin(self, group: tuple[Assignment, ...]) -> None:
        """Hand a group to a process of the device that has the least to do."""
        self._take_back()
        device = min(self._devices, key=self._load)
        structure = structure_at(group[0])
        if group[0].alone:
            self._end_idle(device)
        idle = sorted((w for w in self._idle if w.device == device), key=lambda w: structure not in w.compiled)
        worker = idle[0] if idle else self._new_worker(device)
        if worker in self._idle:
            self._idle.remove(worker)
        worker.compiled.add(structure)
        try:
            worker.connection.send((group, self._body))
        except OSError:  # it died while it had nothing to do
            self._bury(worker)
            self._begin(group)
            return
        worker.group, worker.ended = group, set()
        self._busy.append(worker)

    def _end_idle(self, device: int) -> None:
        """End the processes of a device that have nothing to do: they hold memory of it."""
        for worker in [worker for worker in self._idle if worker.device == device]:
            self._idle.remove(worker)
            worker.process.kill()
            self._bury(worker)

    def _take_back(self) -> None:
        """Have processes idle again whose trials have all departed; their last word comes at once."""
        for worker in [worker for worker in self._busy if not worker.running()]:
            if worker.connection.poll(CLOSING_SECONDS):
                self._collect(worker)

    def _load(self, device: int) -> int:
        return sum(len(worker.group) for worker in self._busy if worker.device == device)

    def _ended(self, worker: _Worker) -> list[Departure]:
        """The trials of a group that have their results while it goes on."""
        found = [each for each in worker.running() if has_result(each)]
        worker.ended |= {assignment.number for assignment in found}
        return [Departure(assignment, "") for assignment in found]

    def _collect(self, worker: _Worker) -> list[Departure]:
        """The rest of a group that is over."""
        self._busy.remove(worker)
        rest = worker.running()
        try:
            clean, cause = cast(tuple[bool, str], worker.connection.recv())
        except (EOFError, ConnectionResetError):
            worker.process.join()
            clean, cause = False, f"ProcessDied: the worker ended with code {worker.process.exitcode}"
        worker.group, worker.ended = (), set()
        if clean:
            self._idle.append(worker)
        else:
            worker.process.kill()
            self._bury(worker)
        return [Departure(assignment, "" if has_result(assignment) else cause) for assignment in rest]

    def _new_worker(self, device: int) -> _Worker:
        ours, theirs = CONTEXT.Pipe()
        held, alive = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_serve, args=(theirs, alive, device), daemon=True)
        process.start()
        theirs.close()
        alive.close()
        return _Worker(process, ours, held, device)

    def _bury(self, worker: _Worker) -> None:
        worker.process.join(CLOSING_SECONDS)
        worker.connection.close()
        worker.alive.close()


def _serve(connection: Connection, alive: Connection, device: int) -> None:
    """The process of a worker: group after group, until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    threading.Thread(target=_leave_with, args=(alive,), daemon=True).start()
    if device >= 0:
        torch.cuda.set_device(device)
        torch.zeros(1, device="cuda")
    with contextlib.suppress(EOFError):
        while True:
            asked = connection.recv()
            connection.send((True, "") if asked is None else _answer(*asked))


def _answer(group: Sequence[Assignment], body: TrainingBody) -> tuple[bool, str]:
    """Whether the process is fit for more, and what the machine's fault was if there was one."""
    try:
        return work_together(group, body), ""
    except Exception as error:
        return False, described(error)


def _leave_with(alive: Connection) -> None:
    """End this process when the one that started it is gone, however it went."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv()
    os._exit(1)


def _fits(most: int, resources: Resources, share: float) -> int:
    """How many trials run at a time. StudyError if none can, or if one needs more than a GPU."""
    if most < 1 or share > 1:
        asked = f"{resources.cpus} CPUs and {share:g} GPUs"
        has = f"{os.cpu_count()} CPUs and {torch.cuda.device_count()} GPUs"
        raise StudyError(
            f"a trial of resources.workers local needs one GPU at most, and {asked} of this machine, which has {has}; "
            "lower resources.cpus or resources.gpus"
        )
    return most if resources.concurrent is None else min(most, resources.concurrent)
