"""What carries out the attempts, as the driver sees it, and what it may use."""

from dataclasses import dataclass
from typing import Literal, Protocol

from archsearch.errors import ConfigError
from archsearch.studies.workers.clerk import Assignment
from archsearch.typed_data import check_fields

MOST_SHARING = 128
"""Trials on one GPU."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What trials may use.

    cpus: cores of one trial, its threads too. gpus: GPUs of one trial; a fraction 1/n lets n trials share one; None
    is a whole one where the cluster has any, else 0.
    concurrent: trials at a time; None is as many as fit. ray_address: a running cluster to join, or "auto"; None
    starts one on this machine. time_limit: seconds after which no new trial begins; None is no limit. workers: what
    carries trials, "ray" or processes of this machine, "local". together: how many trials that differ in seed and rates
    alone may train as one batched model in one process; None is as many as share a GPU, one without a GPU.
    processes: of one trial, which share its batches; None is one a GPU. shard: whether they share its parameters,
    gradients and moments too, for a model that one GPU cannot train. silence: the least seconds without a new
    evaluation after which a trial hangs; ten times as long until five evaluations say how long one takes.
    """

    cpus: int = 1
    gpus: float | None = None
    concurrent: int | None = None
    ray_address: str | None = None
    time_limit: float | None = None
    workers: Literal["ray", "local"] = "ray"
    together: int | None = None
    processes: int | None = None
    shard: bool = False
    silence: float = 600.0

    @property
    def ranks(self) -> int:
        """How many processes carry a trial, its GPUs no longer open."""
        return self.processes or max(1, round(self.gpus or 0.0))

    def __post_init__(self) -> None:
        """Refuse other types and numbers out of range."""
        check_fields(self, "resources")
        if self.cpus < 1:
            raise ConfigError(f"resources.cpus must be >= 1; got {self.cpus}")
        if self.gpus is not None and not _is_share(self.gpus):
            raise ConfigError(
                f"resources.gpus must be a whole number or a fraction 1/n, n <= {MOST_SHARING}; got {self.gpus}"
            )
        if self.concurrent is not None and self.concurrent < 1:
            raise ConfigError(f"resources.concurrent must be >= 1; got {self.concurrent}")
        if self.processes is not None and (self.processes < 1 or self.gpus not in (None, 0.0, float(self.processes))):
            raise ConfigError(
                f"resources.processes must be >= 1, and one a GPU where a trial has GPUs; got {self.processes}"
            )
        if self.together is not None and self.together < 1:
            raise ConfigError(f"resources.together must be >= 1; got {self.together}")
        if self.ranks > 1:
            self._check_group()
        elif self.shard:
            raise ConfigError(
                "resources.shard needs a trial of several processes; got 1; raise resources.gpus, or leave shard out"
            )
        if self.workers == "local" and self.ray_address is not None:
            raise ConfigError("resources.ray_address needs resources.workers ray; got local; leave one of them out")
        if self.silence <= 0:
            raise ConfigError(f"resources.silence must be > 0 seconds; got {self.silence}")
        if self.time_limit is not None and self.time_limit <= 0:
            raise ConfigError(f"resources.time_limit must be > 0 seconds; got {self.time_limit}")

    def _check_group(self) -> None:
        """What a trial of several processes cannot have."""
        if self.workers == "local":
            raise ConfigError(
                f"a trial of {self.ranks} processes needs resources.workers ray; got local; leave workers out"
            )
        if self.together is not None and self.together > 1:
            raise ConfigError(
                f"resources.together must be 1 where a trial has {self.ranks} processes; got {self.together}; "
                "leave it out"
            )


@dataclass(frozen=True, slots=True)
class Departure:
    """An attempt that is over. cause: why the machine lost it, in words; empty if its own code ended it."""

    assignment: Assignment
    cause: str


class WorkersLost(Exception):
    """All that carries attempts is gone, and no other attempt can be begun; the message says what is."""

    def __init__(self, what: str, *, elsewhere: bool) -> None:
        """elsewhere: whether somebody else had started it, and has to start another."""
        super().__init__(what)
        self.elsewhere = elsewhere


class Executor(Protocol):
    """Runs attempts; the files say what became of them. All but `close` may raise WorkersLost."""

    @property
    def slots(self) -> int:
        """How many attempts run at a time."""
        ...

    def start(self, assignment: Assignment) -> None:
        """Begin an attempt; there is a free slot."""
        ...

    def departures(self, timeout: float) -> list[Departure]:
        """The attempts that ended since the last call; waits up to `timeout` seconds for one."""
        ...

    def kill(self, number: int) -> None:
        """End the attempt of a trial at once; it departs no more."""
        ...

    def close(self) -> None:
        """End everything."""
        ...


def members(resources: Resources, share: float) -> int:
    """How many trials of one structure train as one batched model at most, a trial having a `share` of a GPU."""
    return resources.together or (round(1 / share) if 0 < share < 1 else 1)


def _is_share(gpus: float) -> bool:
    """Whether it is 0, 1, 2, ... or 1/n with n <= MOST_SHARING."""
    if gpus.is_integer() or not 1 / MOST_SHARING - 1e-4 <= gpus < 1:
        return gpus.is_integer() and gpus >= 0
    return abs(1 / gpus - round(1 / gpus)) < 0.02
