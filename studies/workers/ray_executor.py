"""Attempts as Ray actors, on this machine or on a cluster: one trial an actor, or several of one structure."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import ray
from ray.exceptions import RayError, RayTaskError

from archsearch.errors import described
from archsearch.studies.workers.clerk import Assignment, Body, work
from archsearch.studies.workers.executor import Departure, Resources
from archsearch.studies.workers.ray_cluster import Cluster


@dataclass(eq=False, slots=True)
class _Crew:
    """An actor, its share of a GPU, and what it works on; ended: numbers of the trials that have departed."""

    actor: Any
    share: float
    group: tuple[Assignment, ...]
    ended: set[int] = field(default_factory=set[int])

    def running(self) -> list[Assignment]:
        """The trials that have not departed."""
        return [assignment for assignment in self.group if assignment.number not in self.ended]


class RayExecutor:
    """Actors of one process each, which serve one trial or crew after another until one of them fails, or actors of
    another share of a GPU are needed.

    Trials of one structure that begin at one time are a crew: they share an actor, up to a whole GPU.
    """

    def __init__(self, make_body: Callable[[Resources], Body], resources: Resources, together: int = 1) -> None:
        """Start Ray on this machine, or join a cluster. StudyError if a trial can never fit.

        make_body: told what one trial has, its GPUs no longer open; a TrainingBody where trials train together.
        together: how many an actor takes.
        """
        self._cluster = Cluster(resources)
        self._resources = self._cluster.resources
        self._body = make_body(self._resources)
        self._together = together
        self._came: list[Assignment] = []
        self._crews: dict[Any, _Crew] = {}
        self._idle: list[Any] = []
        self._idle_share = 0.0

    @property
    def slots(self) -> int:
        """How many attempts run at a time; what a trial leaves free in a crew that goes on is not free yet."""
        return self._cluster.slots() - sum(len(crew.ended) for crew in self._crews.values() if crew.running())

    def start(self, assignment: Assignment) -> None:
        """Begin an attempt, at the next look for departures, together with what else came until then."""
        self._came.append(assignment)

    def departures(self, timeout: float) -> list[Departure]:
        """The attempts that ended; waits up to `timeout` seconds for a crew to end."""
        self._cluster.slots()  # tells of a cluster that is lost
        came, self._came = self._came, []
        for group in self._gathered(came):
            share = share_of(group, self._resources.gpus or 0.0)
            actor = self._cluster.head.ask(partial(self._actor_of, share))
            self._crews[actor.run.remote(group)] = _Crew(actor, share, group)
        if not self._crews:
            time.sleep(timeout)
            return []
        done = self._finished(len(self._crews), 0.0) or self._finished(1, timeout)
        over = [departure for reference in done for departure in self._collect(reference)]
        return over + [departure for crew in self._crews.values() for departure in _ended(crew)]

    def kill(self, number: int) -> None:
        """Kill the actor that carries trial `number`; the others of its crew depart as lost."""
        self._came = [assignment for assignment in self._came if assignment.number != number]
        for crew in self._crews.values():
            if number in [assignment.number for assignment in crew.running()]:
                crew.ended.add(number)
                ray.kill(crew.actor)

    def close(self) -> None:
        """Kill the actors, and Ray if it was started here."""
        if not self._cluster.head.is_lost:
            for actor in [crew.actor for crew in self._crews.values()] + self._idle:
                ray.kill(actor)
        self._crews.clear()
        self._idle.clear()
        self._cluster.leave()

    def _gathered(self, came: list[Assignment]) -> list[tuple[Assignment, ...]]:
        if self._together == 1:
            return [(assignment,) for assignment in came]
        from archsearch.studies.workers.crew import gathered

        return gathered(came, self._together)

    def _finished(self, count: int, timeout: float) -> list[Any]:
        waited = cast(tuple[list[Any], list[Any]], ray.wait(list(self._crews), num_returns=count, timeout=timeout))
        return waited[0]

    def _collect(self, reference: Any) -> list[Departure]:
        """The rest of a crew that is over."""
        crew = self._crews.pop(reference)
        clean, cause = False, ""
        try:
            clean = cast(bool, ray.get(reference))
        except RayError as error:
            cause = cause_of(error)
        if clean and crew.share == self._idle_share:
            self._idle.append(crew.actor)
        else:
            ray.kill(crew.actor)
        return [Departure(assignment, cause) for assignment in crew.running()]

    def _actor_of(self, share: float) -> Any:
        """An idle actor of such a share of a GPU, or a new one; idle ones of another share make room."""
        if share != self._idle_share:
            for actor in self._idle:
                ray.kill(actor)
            self._idle.clear()
            self._idle_share = share
        if self._idle:
            return self._idle.pop()
        return _WORKER.options(num_cpus=self._resources.cpus, num_gpus=share).remote(self._body)


def share_of(group: Sequence[Assignment], gpus: float) -> float:
    """The GPUs of a crew of trials that have so many each; a trial that runs alone has a whole one."""
    whole = max(1.0, gpus)
    return whole if group[0].alone else min(whole, len(group) * gpus)


def _ended(crew: _Crew) -> list[Departure]:
    """The trials of a crew that have their results while it goes on."""
    if len(crew.group) == 1:
        return []
    from archsearch.studies.workers.crew import has_result

    found = [assignment for assignment in crew.running() if has_result(assignment)]
    crew.ended |= {assignment.number for assignment in found}
    return [Departure(assignment, "") for assignment in found]


class _Worker:
    """The process of one crew."""

    def __init__(self, body: Body) -> None:
        self._body = body

    def run(self, group: Sequence[Assignment]) -> bool:
        """Carry out an attempt at each trial; whether the process is fit for more."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
        if len(group) == 1:
            return work(group[0], self._body)
        from archsearch.studies.workers.crew import work_together

        return work_together(group, cast(Any, self._body))


_WORKER: Any = ray.remote(max_restarts=0)(_Worker)  # one, which a cluster is told once: telling it waits for the head


def cause_of(error: Exception) -> str:
    """What ended an attempt, in one line: the worker's own exception where there is one, not Ray's wrapping of it."""
    return described(cast(Exception, error.cause) if isinstance(error, RayTaskError) else error)
