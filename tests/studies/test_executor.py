"""What trials may use, and how many fit; attempts on a real Ray are in test_kill.py."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from archsearch.errors import CheckpointError, ConfigError, StudyError
from archsearch.studies.workers.clerk import Assignment, Clerk
from archsearch.studies.workers.executor import Resources
from archsearch.studies.workers.ray_cluster import needed_slots, slots, with_gpus
from archsearch.studies.workers.ray_executor import RayExecutor, cause_of, share_of

MACHINE = [{"CPU": 8.0, "GPU": 2.0}]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (Resources(cpus=1, gpus=0.0), 8),
        (Resources(cpus=3, gpus=0.0), 2),
        (Resources(cpus=1, gpus=1.0), 2),
        (Resources(cpus=1, gpus=0.25), 8),
        (Resources(cpus=2, gpus=0.25), 4),
        (Resources(cpus=1, gpus=0.0, concurrent=3), 3),
        (Resources(cpus=1, gpus=0.0, concurrent=30), 8),
    ],
)
def test_as_many_trials_run_as_fit(resources: Resources, expected: int) -> None:
    assert slots(MACHINE, resources) == expected


def test_a_trial_that_never_fits_is_refused() -> None:
    with pytest.raises(StudyError) as error:
        needed_slots([{"CPU": 8.0}, {"CPU": 2.0}], Resources(cpus=1, gpus=1.0))
    assert str(error.value) == (
        "a trial needs 1 CPUs and 1 GPUs of one node; the largest has 8 CPUs and 0 GPUs; "
        "lower resources.cpus or resources.gpus"
    )


def test_a_trial_lies_on_one_node_and_a_cluster_may_lose_all_of_them() -> None:
    assert slots([{"CPU": 3.0}, {"CPU": 3.0}], Resources(cpus=2, gpus=0.0)) == 2
    assert slots([{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 1.0}], Resources(cpus=1, gpus=2.0)) == 0
    assert slots([], Resources(gpus=0.0)) == 0


def test_a_gpu_is_taken_where_there_is_one_and_nothing_else_was_asked() -> None:
    assert with_gpus(Resources(), MACHINE).gpus == 1.0
    assert with_gpus(Resources(), [{"CPU": 2.0}]).gpus == 0.0
    assert with_gpus(Resources(gpus=0.0), MACHINE).gpus == 0.0


@pytest.mark.parametrize("gpus", [0.3, 1.5, -1.0])
def test_shares_of_a_gpu_are_one_nth(gpus: float) -> None:
    with pytest.raises(ConfigError, match=r"resources\.gpus must be a whole number or a fraction 1/n"):
        Resources(gpus=gpus)
    assert Resources(gpus=1 / 3).gpus == 1 / 3


def test_a_crew_has_the_shares_of_its_trials_and_who_runs_alone_a_whole_gpu(tmp_path: Path) -> None:
    one, alone = Assignment(tmp_path, 0, 1), Assignment(tmp_path, 1, 2, alone=True)
    assert [share_of((one,) * count, 0.25) for count in (1, 3, 4, 5)] == [0.25, 0.75, 1.0, 1.0]
    assert share_of((alone,), 0.25) == share_of((alone,), 1.0) == 1.0
    assert share_of((one,), 1.0) == 1.0 and share_of((one, one), 0.0) == 0.0


def test_a_lost_attempt_is_told_in_the_words_of_what_ended_it() -> None:
    full = CheckpointError("no checkpoint of 2 tokens in a: the disk is full")
    error = RayTaskError("run", "a traceback\nof many lines", full).as_instanceof_cause()
    assert cause_of(error) == "CheckpointError: no checkpoint of 2 tokens in a: the disk is full"
    assert cause_of(ActorDiedError()).startswith("ActorDiedError: The actor died")


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1", "127.0.0.1:99999"])
def test_an_address_where_no_cluster_answers_is_told_soon_and_in_one_line(address: str) -> None:
    began = time.monotonic()
    with pytest.raises(StudyError) as error:
        RayExecutor(lambda given: _never, Resources(ray_address=address))
    assert time.monotonic() - began < 10
    assert str(error.value) == (
        f"resources.ray_address must name a running Ray cluster; {address} cannot be joined; start one with "
        "ray start --head, or leave ray_address out (a cluster with tokens needs RAY_AUTH_MODE=token)"
    )


def test_a_client_of_a_distant_cluster_is_refused() -> None:
    with pytest.raises(StudyError, match=r"must be HOST:PORT or auto; got ray://head:10001: run the driver on a node"):
        RayExecutor(lambda given: _never, Resources(ray_address="ray://head:10001"))


def _never(clerk: Clerk) -> Mapping[str, Any]:
    raise AssertionError("no trial runs")
