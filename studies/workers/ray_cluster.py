"""Ray on this machine, or a cluster that is joined: what its nodes have, and how many trials fit on them."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import ray
from ray._private import ray_constants

from archsearch.errors import StudyError, first_line
from archsearch.studies.workers.executor import Resources
from archsearch.studies.workers.ray_head import SECONDS_TO_ANSWER, Head, answers

SECONDS_BETWEEN_LOOKS = 1.0
"""At the nodes of the cluster, which come and go."""


class Cluster:
    """The cluster that this process belongs to. resources: of a trial, its GPUs no longer open."""

    def __init__(self, resources: Resources) -> None:
        """Start Ray on this machine, or join a cluster. StudyError if a trial can never fit."""
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            _start_ray(resources)
        address = str(cast(Any, ray.get_runtime_context()).gcs_address)
        self.head = Head(address, elsewhere=resources.ray_address is not None or not self._is_ours)
        nodes = self.head.nodes()
        self.resources = with_gpus(resources, nodes)
        self._slots = needed_slots(nodes, self.resources)
        self._looked = time.monotonic()

    def slots(self) -> int:
        """How many trials fit, on the nodes that there are now. WorkersLost if the head does not answer."""
        if time.monotonic() - self._looked > SECONDS_BETWEEN_LOOKS:
            self._looked = time.monotonic()
            self._slots = slots(self.head.nodes(), self.resources)
        return self._slots

    def leave(self) -> None:
        """End Ray if it was started here."""
        if self._is_ours:
            self.head.leave()


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
