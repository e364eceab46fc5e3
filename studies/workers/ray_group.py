"""Attempts of trials that have several processes: a group of Ray actors on one node, which begin and end together."""

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from archsearch.studies.files.outcomes import PeerLost
from archsearch.studies.workers.body import TrainingBody
from archsearch.studies.workers.clerk import Assignment
from archsearch.studies.workers.executor import Departure, Resources, WorkersLost
from archsearch.studies.workers.ranks import work_as_rank
from archsearch.studies.workers.ray_cluster import Cluster
from archsearch.studies.workers.ray_executor import cause_of

GRACE = 5.0
"""Seconds that the others of a group have to end by themselves once one has failed."""


@dataclass(eq=False, slots=True)
class _Group:
    """The processes of one attempt, the first one first. open: what has not ended. cause: the first one in time."""

    assignment: Assignment
    actors: list[Any]
    first: Any
    open: list[Any]
    placement: Any
    cause: str = ""
    failed: float | None = None

    def note(self, reference: Any) -> None:
        """Take in how a process ended. That it lost another says less than how the other was lost."""
        self.open.remove(reference)
        try:
            if not cast(bool, ray.get(reference)):
                self.failed = self.failed or time.monotonic()
        except RayError as error:
            self.failed = self.failed or time.monotonic()
            if not self.cause or self.cause.startswith(PeerLost.__name__):
                self.cause = cause_of(error)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be waited for."""
        late = self.failed is not None and time.monotonic() - self.failed > GRACE
        return not self.open or late or (self.first not in self.open and self.failed is None)


class GroupExecutor:
    """One group an attempt."""

    def __init__(self, make_body: Callable[[Resources], TrainingBody], resources: Resources) -> None:
        """As `RayExecutor`; make_body: of one process."""
        self._cluster = Cluster(resources)
        self._resources = self._cluster.resources
        self._body = make_body(self._resources)
        self._groups: list[_Group] = []

    @property
    def slots(self) -> int:
        """How many attempts run at a time."""
        return self._cluster.slots()

    def start(self, assignment: Assignment) -> None:
        """Ask for a place for all processes on one node, and begin them there."""
        self._groups.append(self._cluster.head.ask(partial(self._begun, assignment)))

    def _begun(self, assignment: Assignment) -> _Group:
        world = self._resources.ranks
        share = {"CPU": self._resources.cpus / world, "GPU": 1.0 if self._resources.gpus else 0.0}
        bundle = {name: amount for name, amount in share.items() if amount}
        placement = placement_group([bundle] * world, strategy="STRICT_PACK")
        actors = [
            _RANK.options(
                num_cpus=share["CPU"],
                num_gpus=share["GPU"],
                scheduling_strategy=PlacementGroupSchedulingStrategy(placement, placement_group_bundle_index=rank),
            ).remote(self._body)
            for rank in range(world)
        ]
        references = [actor.run.remote(assignment, rank, world) for rank, actor in enumerate(actors)]
        return _Group(assignment, actors, references[0], list(references), placement)

    def departures(self, timeout: float) -> list[Departure]:
        """The attempts that ended; waits up to `timeout` seconds for a process to end."""
        self._cluster.slots()  # tells of a cluster that is lost
        waited = [reference for group in self._groups for reference in group.open]
        if not waited:
            time.sleep(timeout)
            return []
        done, _ = cast(tuple[list[Any], list[Any]], ray.wait(waited, num_returns=1, timeout=timeout))
        for reference in done:
            next(group for group in self._groups if reference in group.open).note(reference)
        over = [group for group in self._groups if group.is_over]
        for group in over:
            self._end(group)
        return [Departure(group.assignment, group.cause) for group in over]

    def kill(self, number: int) -> None:
        """Kill the processes of trial `number`."""
        for group in [group for group in self._groups if group.assignment.number == number]:
            self._end(group)

    def close(self) -> None:
        """Kill every group, and Ray if it was started here."""
        with contextlib.suppress(WorkersLost):
            for group in list(self._groups):
                self._end(group)
        self._cluster.leave()

    def _end(self, group: _Group) -> None:
        self._groups.remove(group)
        if self._cluster.head.is_lost:
            return
        for actor in group.actors:
            ray.kill(actor)
        self._cluster.head.ask(partial(remove_placement_group, group.placement))


class _Rank:
    """One process of a trial."""

    def __init__(self, body: TrainingBody) -> None:
        self._body = body

    def run(self, assignment: Assignment, rank: int, world: int) -> bool:
        """Carry out its part; whether it ended well."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
        return work_as_rank(assignment, self._body, rank, world)


_RANK: Any = ray.remote(max_restarts=0)(_Rank)  # one, which a cluster is told once: telling it waits for the head
