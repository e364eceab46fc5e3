"""Attempts as Ray actors, on this machine or on a cluster."""

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import ray
from ray.exceptions import RayError, RayTaskError

from archsearch.errors import StudyError
from archsearch.studies.clerk import Assignment, Body, work
from archsearch.studies.executor import Departure, Resources


class RayExecutor:
    """One actor a slot, of one process. An actor without a GPU serves trial after trial until one of them fails."""

    def __init__(self, make_body: Callable[[Resources], Body], resources: Resources) -> None:
        """Start Ray on this machine, or join a cluster. StudyError if a trial can never fit.

        make_body: told what one trial has, its GPUs no longer open.
        """
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            _start_ray(resources)
        available = cast(dict[str, float], ray.cluster_resources())
        self._resources = with_gpus(resources, available)
        self._body = make_body(self._resources)
        self.slots = slots(available, self._resources)
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Assignment]] = {}

    def start(self, assignment: Assignment) -> None:
        """Begin an attempt on an idle actor or a new one."""
        actor = self._idle.pop() if self._idle else self._new_actor()
        self._busy[actor.run.remote(assignment)] = (actor, assignment)

    def departures(self, timeout: float) -> list[Departure]:
        """The attempts that ended; waits up to `timeout` seconds for one."""
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
        for actor in [actor for actor, _ in self._busy.values()] + self._idle:
            ray.kill(actor)
        self._busy.clear()
        self._idle.clear()
        if self._owns_ray:
            ray.shutdown()

    def _depart(self, reference: Any) -> Departure:
        actor, assignment = self._busy.pop(reference)
        try:
            clean = bool(cast(Any, ray.get(reference)))
        except RayError as error:
            ray.kill(actor)
            return Departure(assignment, cause_of(error))
        if clean and not self._resources.gpus:
            self._idle.append(actor)
        else:
            ray.kill(actor)
        return Departure(assignment, "")

    def _new_actor(self) -> Any:
        remote = ray.remote(num_cpus=self._resources.cpus, num_gpus=self._resources.gpus or 0.0, max_restarts=0)(
            _Worker
        )
        return remote.remote(self._body)


class _Worker:
    """The process of one slot."""

    def __init__(self, body: Body) -> None:
        self._body = body

    def run(self, assignment: Assignment) -> bool:
        """Carry out an attempt; whether the process is fit for another one."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
        return work(assignment, self._body)


def _start_ray(resources: Resources) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # its default of 15 starves trials beside anything else
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if resources.ray_address is not None:
        _join(resources.ray_address, quiet)
        return
    ray.init(address="local", include_dashboard=False, object_store_memory=80 * 2**20, **quiet)


def _join(address: str, quiet: dict[str, Any]) -> None:
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError) as error:
        raise StudyError(
            f"resources.ray_address must name a running Ray cluster; {address} cannot be joined; start one with "
            "ray start --head, or leave ray_address out (a cluster with tokens needs RAY_AUTH_MODE=token)"
        ) from error


def with_gpus(resources: Resources, available: Mapping[str, float]) -> Resources:
    """The resources with their GPUs no longer open: one a trial where the cluster has any."""
    return resources if resources.gpus is not None else replace(resources, gpus=min(1.0, available.get("GPU", 0.0)))


def slots(available: Mapping[str, float], resources: Resources) -> int:
    """How many trials fit into what a cluster has; StudyError if none does."""
    fits = int(available.get("CPU", 0) // resources.cpus)
    gpus = resources.gpus or 0.0
    if gpus:
        fits = min(fits, int(available.get("GPU", 0) / gpus + 1e-9))
    if fits < 1:
        needed = f"{resources.cpus} CPUs and {gpus:g} GPUs"
        has = f"{available.get('CPU', 0):g} CPUs and {available.get('GPU', 0):g} GPUs"
        raise StudyError(f"a trial needs {needed}; the cluster has {has}; lower resources.cpus or resources.gpus")
    return fits if resources.concurrent is None else min(fits, resources.concurrent)


def cause_of(error: Exception) -> str:
    """What ended an attempt, in one line: the worker's own exception where there is one, not Ray's wrapping of it."""
    told = cast(Exception, error.cause) if isinstance(error, RayTaskError) else error
    text = (str(told).strip().splitlines() or [""])[0]
    return f"{type(told).__name__}: {text}"
