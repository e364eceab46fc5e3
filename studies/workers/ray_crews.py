"""Ray actors that carry several trials of one structure each, with the cores and the GPU shares of all of them."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import ray
from ray.exceptions import RayError

from archsearch.studies.workers.body import TrainingBody
from archsearch.studies.workers.clerk import Assignment
from archsearch.studies.workers.crew import gathered, has_result, work_together
from archsearch.studies.workers.executor import Departure, Resources
from archsearch.studies.workers.ray_executor import RayExecutor, cause_of


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


class RayCrews(RayExecutor):
    """As `RayExecutor`, but trials of one structure that begin at one time share an actor, up to a whole GPU.

    An actor serves group after group of its share of a GPU, until one of them fails or another share is needed.
    """

    def __init__(self, make_body: Callable[[Resources], TrainingBody], resources: Resources, together: int) -> None:
        """together: how many trials an actor takes. StudyError if a trial can never fit."""
        super().__init__(make_body, resources)
        self._together = together
        self._came: list[Assignment] = []
        self._crews: dict[Any, _Crew] = {}
        self._idle_share = 0.0

    @property
    def slots(self) -> int:
        """How many attempts run at a time; what a trial leaves free in a group that goes on is not free yet."""
        return super().slots - sum(len(crew.ended) for crew in self._crews.values() if crew.running())

    def start(self, assignment: Assignment) -> None:
        """Begin an attempt, at the next look for departures, together with what else came until then."""
        self._came.append(assignment)

    def departures(self, timeout: float) -> list[Departure]:
        """The attempts that ended; waits up to `timeout` seconds for the end of a group."""
        self._look()
        groups, self._came = gathered(self._came, self._together), []
        for group in groups:
            share = self._share_of(self._together if group[0].alone else len(group))
            actor = self._head.ask(partial(self._actor_of, share))
            self._crews[actor.run.remote(group)] = _Crew(actor, share, group)
        if not self._crews:
            time.sleep(timeout)
            return []
        waited = cast(tuple[list[Any], list[Any]], ray.wait(list(self._crews), num_returns=1, timeout=timeout))
        over = [departure for reference in waited[0] for departure in self._collect(reference)]
        for crew in self._crews.values():
            found = [assignment for assignment in crew.running() if has_result(assignment)]
            crew.ended |= {assignment.number for assignment in found}
            over += [Departure(assignment, "") for assignment in found]
        return over

    def kill(self, number: int) -> None:
        """Kill the actor that carries trial `number`; the others of its group depart as lost."""
        self._came = [assignment for assignment in self._came if assignment.number != number]
        for crew in self._crews.values():
            if number in [assignment.number for assignment in crew.running()]:
                crew.ended.add(number)
                ray.kill(crew.actor)

    def close(self) -> None:
        """Kill the actors, and Ray if it was started here."""
        if not self._head.is_lost:
            for crew in self._crews.values():
                ray.kill(crew.actor)
        self._crews.clear()
        super().close()

    def _collect(self, reference: Any) -> list[Departure]:
        crew = self._crews.pop(reference)
        cause = ""
        clean = False
        try:
            clean = cast(bool, ray.get(reference))
        except RayError as error:
            cause = cause_of(error)
        if clean and crew.share == self._idle_share:
            self._idle.append(crew.actor)
        else:
            ray.kill(crew.actor)
        return [Departure(each, "" if has_result(each) else cause) for each in crew.running()]

    def _share_of(self, trials: int) -> float:
        return min(1.0, trials * (self._resources.gpus or 0.0))

    def _actor_of(self, share: float) -> Any:
        """An idle actor of such a share of a GPU, or a new one; idle ones of another share make room."""
        if share != self._idle_share:
            self._end_idle()
            self._idle_share = share
        if self._idle:
            return self._idle.pop()
        return _WORKER.options(num_cpus=self._resources.cpus, num_gpus=share).remote(self._body)


class _Worker:
    """The process of one group."""

    def __init__(self, body: TrainingBody) -> None:
        self._body = body

    def run(self, group: Sequence[Assignment]) -> bool:
        """Carry out an attempt at each trial."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
        return work_together(group, self._body)


_WORKER: Any = ray.remote(max_restarts=0)(_Worker)  # one, which a cluster is told once: telling it waits for the head
