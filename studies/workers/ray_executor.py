"""Attempts as Ray actors, on this machine or on a cluster."""

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import ray
from ray._private import ray_constants
from ray.exceptions import RayError, RayTaskError

from archsearch.errors import StudyError, described, first_line
from archsearch.studies.workers.clerk import Assignment, Body, work
from archsearch.studies.workers.executor import Departure, Resources
from archsearch.studies.workers.ray_head import SECONDS_TO_ANSWER, Head, answers

SECONDS_BETWEEN_LOOKS = 1.0
"""At the nodes of the cluster, which come and go."""


class RayExecutor:
    """One actor a slot, of one process, which serves trial after trial until one of them fails."""

    def __init__(self, make_body: Callable[[Resources], Body], resources: Resources) -> None:
        """Start Ray on this machine, or join a cluster. StudyError if a trial can never fit.

        make_body: told what one trial has, its GPUs no longer open.
        """
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            _start_ray(resources)
        address = str(cast(Any, ray.get_runtime_context()).gcs_address)
        self._head = Head(address, elsewhere=resources.ray_address is not None or not self._owns_ray)
        nodes = self._head.nodes()
        self._resources = with_gpus(resources, nodes)
        self._body = make_body(self._resources)
        self._slots = needed_slots(nodes, self._resources)
        self._looked = time.monotonic()
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Assignment]] = {}

    @property
    def slots(self) -> int:
        """How many attempts run at a time, on the nodes that there are now."""
        self._look()
        return self._slots

    def _look(self) -> None:
        """At the cluster, now and then."""
        if time.monotonic() - self._looked > SECONDS_BETWEEN_LOOKS:
            self._looked = time.monotonic()
            self._slots = slots(self._head.nodes(), self._resources)

    def start(self, assignment: Assignment) -> None:
        """Begin an attempt on an idle actor or a new one."""
        if assignment.alone:
            self._end_idle()
        new = partial(self._new_actor, alone=assignment.alone)
        actor = self._idle.pop() if self._idle else self._head.ask(new)
        self._busy[actor.run.remote(assignment)] = (actor, assignment)

    def departures(self, timeout: float) -> list[Departure]:
        """The attempts that ended; waits up to `timeout` seconds for one."""
        self._look()
        if not self._busy:
            time.sleep(timeout)
            return []
        done = self._finished(len(self._busy), 0.0) or self._finished(1, timeout)
        return [self._depart(reference) for reference in done]

    def _finished(self, count: int, timeout: float) -> list[Any]:
        waited = cast(tuple[list[Any], list[Any]], ray.wait(list(self._busy), num_returns=count, timeout=timeout))
        return waited[0]

    def kill(self, number: int) -> None:
        """Kill the actor that carries trial `number`."""
        for reference, (actor, assignment) in list(self._busy.items()):
            if assignment.number == number:
                del self._busy[reference]
                ray.kill(actor)

    def close(self) -> None:
        """Kill the actors, and Ray if it was started here."""
        if not self._head.is_lost:
            for actor in [actor for actor, _ in self._busy.values()] + self._idle:
                ray.kill(actor)
        self._busy.clear()
        self._idle.clear()
        if self._owns_ray:
            self._head.leave()

    def _depart(self, reference: Any) -> Departure:
        actor, assignment = self._busy.pop(reference)
        try:
            clean = bool(cast(Any, ray.get(reference)))
        except RayError as error:
            ray.kill(actor)
            return Departure(assignment, cause_of(error))
        if clean and not assignment.alone:
            self._idle.append(actor)
        else:
            ray.kill(actor)
        return Departure(assignment, "")

    def _end_idle(self) -> None:
        """Kill the actors that have nothing to do: they hold what another kind of actor needs."""
        for actor in self._idle:
            ray.kill(actor)
        self._idle.clear()

    def _new_actor(self, *, alone: bool) -> Any:
        gpus = max(1.0, self._resources.gpus or 0.0) if alone else self._resources.gpus or 0.0
        return _WORKER.options(num_cpus=self._resources.cpus, num_gpus=gpus).remote(self._body)


class _Worker:
    """The process of one slot."""

    def __init__(self, body: Body) -> None:
        self._body = body

    def run(self, assignment: Assignment) -> bool:
        """Carry out an attempt; whether the process is fit for another one."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
        return work(assignment, self._body)


_WORKER: Any = ray.remote(max_restarts=0)(_Worker)  # one, which a cluster is told once: telling it waits for the head


def _start_ray(resources: Resources) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # its default of 15 starves trials beside anything else
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if resources.ray_address is not None:
        _join(resources.ray_address, quiet)
        return
    try:
        ray.init(address="local", include_dashboard=False, object_store_memory=80 * 2**20, **quiet)
    except Exception as error:  # Ray raises nothing narrower where its processes do not come up
        raise StudyError(
            f"Ray did not start on this machine: {first_line(error)} Run the same command again"
        ) from error


def _join(address: str, quiet: dict[str, Any]) -> None:
    """Join a running cluster. StudyError if none answers at the address."""
    if "://" in address:
        raise StudyError(
            f"resources.ray_address must be HOST:PORT or auto; got {address}: run the driver on a node of the cluster"
        )
    if address != "auto" and not answers(address):
        raise StudyError(_nothing_at(address))
    ray_constants.NUM_REDIS_GET_RETRIES = int(SECONDS_TO_ANSWER)  # of a second each; Ray's own 20 are long to wait
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise StudyError(_nothing_at(address)) from error


def _nothing_at(address: str) -> str:
    return (
        f"resources.ray_address must name a running Ray cluster; {address} cannot be joined; start one with "
        "ray start --head, or leave ray_address out (a cluster with tokens needs RAY_AUTH_MODE=token)"
    )


def with_gpus(resources: Resources, nodes: Sequence[Mapping[str, float]]) -> Resources:
    """The resources with their GPUs no longer open: one a trial where the cluster has any."""
    if resources.gpus is not None:
        return resources
    return replace(resources, gpus=min(1.0, max((node.get("GPU", 0.0) for node in nodes), default=0.0)))


def slots(nodes: Sequence[Mapping[str, float]], resources: Resources) -> int:
    """How many trials fit on the nodes of a cluster, each on one of them."""
    fits = sum(_fits(node, resources) for node in nodes)
    return fits if resources.concurrent is None else min(fits, resources.concurrent)


def needed_slots(nodes: Sequence[Mapping[str, float]], resources: Resources) -> int:
    """The slots. StudyError if no node can ever take a trial."""
    found = slots(nodes, resources)
    if found < 1:
        needed = f"{resources.cpus} CPUs and {resources.gpus or 0.0:g} GPUs"
        nothing: Mapping[str, float] = {}
        most = max(nodes, key=lambda node: (node.get("GPU", 0.0), node.get("CPU", 0.0)), default=nothing)
        has = f"{most.get('CPU', 0):g} CPUs and {most.get('GPU', 0):g} GPUs"
        raise StudyError(
            f"a trial needs {needed} of one node; the largest has {has}; lower resources.cpus or resources.gpus"
        )
    return found


def _fits(node: Mapping[str, float], resources: Resources) -> int:
    fits = int(node.get("CPU", 0) // resources.cpus)
    gpus = resources.gpus or 0.0
    return min(fits, int(node.get("GPU", 0) / gpus + 1e-9)) if gpus else fits


def cause_of(error: Exception) -> str:
    """What ended an attempt, in one line: the worker's own exception where there is one, not Ray's wrapping of it."""
    return described(cast(Exception, error.cause) if isinstance(error, RayTaskError) else error)
