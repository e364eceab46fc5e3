"""A trial whose parameters two processes share: the losses of one process, in half of the memory; whole checkpoints."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from archsearch.errors import ConfigError
from archsearch.studies.training.checkpoint import read_checkpoint
from archsearch.studies.workers.executor import Resources

Curve = list[dict[str, float]]


@dataclass(frozen=True)
class Found:
    """What one process found alone, and what two that share found, the first one first."""

    home: Path
    alone: Curve
    shared: tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def found(sharing: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """All of it, of two processes that live once."""
    home = tmp_path_factory.mktemp("shared")
    before = sharing.trained(home / "alone", until=sharing.HALF)
    command = [sys.executable, "-W", "error", str(sharing.__file__), str(home)]
    processes = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]
    whole = sharing.trained(home / "one")
    assert before == whole[: len(before)] and len(whole) > len(before) > 0
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    first, second = (json.loads((home / f"found-{rank}.json").read_text()) for rank in range(2))
    return Found(home, whole, (first, second))


def _close(ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_a_sharded_trial_has_the_losses_of_one_process_and_of_averaged_gradients(found: Found) -> None:
    first, second = found.shared
    assert first["whole"][0]["recall_loss"] > first["whole"][-1]["recall_loss"], "it learns"
    _close(first["whole"], found.alone)
    _close(first["averaged"], found.alone)
    assert second["whole"] == [], "only the first process speaks for the trial"


def test_each_process_keeps_half_of_the_parameters_and_of_the_gradients(found: Found) -> None:
    splits = [each["split"] for each in found.shared]
    for split in splits:
        for share in (split["kept"], split["gradients"]):
            assert abs(share - split["whole"] / 2) < split["whole"] / 10
    assert sum(split["kept"] for split in splits) == splits[0]["whole"]


def test_kernels_are_given_plain_tensors_and_the_same_parameters_decay(found: Found) -> None:
    for split in (each["split"] for each in found.shared):
        assert split["given"] and not {"DTensor"} & set(split["given"])
        whole, shared = split["decay"]
        assert whole == shared and 0 < len(whole) < split["parameters"]


def test_a_sharded_trial_that_was_stopped_ends_as_if_it_had_not_been(found: Found) -> None:
    first, _ = found.shared
    assert [*first["before"], *first["after"]] == first["whole"]
    ends = [read_checkpoint(found.home / name) for name in ("sharded", "resumed")]
    assert ends[0] is not None and ends[1] is not None
    assert ends[0].tensors.keys() == ends[1].tensors.keys()
    assert all(ends[0].tensors[name].equal(tensor) for name, tensor in ends[1].tensors.items())


def test_a_checkpoint_is_whole_and_goes_on_in_another_number_of_processes(found: Found, sharing: ModuleType) -> None:
    one, shared = read_checkpoint(found.home / "one"), read_checkpoint(found.home / "sharded")
    assert one is not None and shared is not None
    assert {name: tensor.shape for name, tensor in one.tensors.items()} == {
        name: tensor.shape for name, tensor in shared.tensors.items()
    }
    first, _ = found.shared
    _close(first["taken up"], found.alone[len(first["before"]) :])
    _close(sharing.trained(found.home / "left"), found.alone[len(first["before"]) :])


def test_what_does_not_go_with_shares_is_refused_in_one_line() -> None:
    for given, message in (
        (
            {"shard": True},
            "resources.shard needs a trial of several processes; got 1; raise resources.gpus, or leave shard out",
        ),
        (
            {"gpus": 2.0, "shard": True, "workers": "local"},
            "a trial of 2 processes needs resources.workers ray; got local; leave workers out",
        ),
        (
            {"gpus": 0.0, "processes": 2, "shard": True, "together": 4},
            "resources.together must be 1 where a trial has 2 processes; got 4; leave it out",
        ),
    ):
        with pytest.raises(ConfigError) as error:
            Resources(**given)  # pyright: ignore[reportArgumentType]
        assert str(error.value) == message
