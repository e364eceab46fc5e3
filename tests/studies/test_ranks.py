"""A trial on two processes: the losses of one process, and the machine's faults told apart from its own."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from archsearch.errors import ConfigError, StudyError
from archsearch.spaces.options import Training
from archsearch.studies.design.config import StudyConfig
from archsearch.studies.engine.run import run_study
from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Outcome, PeerLost, classify
from archsearch.studies.tasks.mqar import MqarOptions
from archsearch.studies.tasks.registry import Tasks
from archsearch.studies.training.configuration import read_config
from archsearch.studies.training.parallel import ParallelRun, Ranks, is_lost_peer
from archsearch.studies.workers.executor import Resources
from archsearch.studies.workers.ray_cluster import needed_slots

CONFIG = """
space: delta_family
directory: {home}/study
tasks:
  mqar: {{length: 16, pairs: 2, vocabulary: 16, evaluation: 8, tokens: 2048}}
trials: 0
baselines: [gated_delta_net]
model: {{width: 16, heads: 1, layers: 1, mlp_ratio: 0}}
training: {{batch_tokens: 112, learning_rate: 0.01}}
objectives: {{recall_loss: minimize}}
evaluations: 4
rungs: {{count: 2, eta: 2, free_pass_every: 0}}
"""


def _config(home: Path, *overrides: str) -> StudyConfig:
    (home / "study.yaml").write_text(CONFIG.format(home=home))
    return read_config(StudyConfig, home / "study.yaml", overrides)


def _curve(study: StudyDirectory) -> list[Mapping[str, float]]:
    result = study.trial(0).result()
    assert result is not None and result.outcome is Outcome.COMPLETE, result
    return [measurement.values for measurement in study.trial(0).curve()]


@pytest.mark.parametrize("shard", [False, True])
def test_two_processes_train_as_one_does_and_go_on_when_one_of_them_is_killed(
    tmp_path: Path, thread_executor: Any, *, shard: bool
) -> None:
    from archsearch.studies.workers.body import TrainingBody

    (tmp_path / "one").mkdir()
    one = run_study(_config(tmp_path / "one"), workers=lambda config: thread_executor(TrainingBody(1)))
    told: list[str] = []
    killed: list[int] = []
    study = StudyDirectory(tmp_path / "study")

    def kill_once() -> None:
        present = records.read_json(study.trial(0).path / "worker-1.json")
        if present and study.trial(0).curve() and not killed:
            killed.append(int(str(present["pid"])))
            os.kill(killed[0], signal.SIGKILL)

    config = _config(tmp_path, f"resources={{gpus: 0, processes: 2, shard: {str(shard).lower()}}}")
    run_study(config, announce=told.append, on_look=kill_once)
    assert study.trial(0).attempt() == 2 and any("was lost" in text for text in told)
    assert (study.trial(0).path / "ranks-2").exists(), "the processes met"
    assert len(_curve(study)) == len(_curve(one)) == 4
    result = study.trial(0).result()
    assert result is not None and dict(result.details or {}).items() >= {"processes": 2, "sharded": shard}.items()
    for ours, theirs in zip(_curve(study), _curve(one), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_a_lost_process_is_the_machines_fault_and_a_failure_of_its_own_is_not() -> None:
    closed = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    assert is_lost_peer(closed) and not is_lost_peer(RuntimeError("shape '[2]' is invalid"))
    assert classify(PeerLost("process 0 of 2 lost another")) is Outcome.INFRASTRUCTURE
    assert classify(RuntimeError("shape '[2]' is invalid")) is Outcome.BUG


def test_what_processes_cannot_share_is_refused_in_one_line() -> None:
    task = Tasks(mqar=MqarOptions(length=16, pairs=2, vocabulary=16, evaluation=8)).build()["mqar"]
    given = (task, torch.nn.Linear(2, 2), Training(batch_tokens=16, learning_rate=0.01), 64, 0, torch.device("cpu"))
    ranks = Ranks(0, 2, torch.device("cpu"))
    with pytest.raises(ConfigError) as error:
        ParallelRun(ranks, *given, graphs=False)
    assert str(error.value) == (
        "a batch needs a sequence for each of 2 processes; it has 1; "
        "raise training.batch_tokens or lower resources.gpus"
    )
    with pytest.raises(ConfigError, match="graphs need one process a trial; leave graphs out"):
        ParallelRun(ranks, *given, graphs=True)
    with pytest.raises(ConfigError, match=r"resources\.processes must be >= 1, and one a GPU .*; got 3"):
        Resources(gpus=2.0, processes=3)


def test_a_group_that_never_fits_on_a_node_is_refused() -> None:
    nodes = [{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 1.0}]
    with pytest.raises(StudyError) as error:
        needed_slots(nodes, Resources(cpus=2, gpus=2.0))
    assert str(error.value) == (
        "a trial needs 2 CPUs and 2 GPUs of one node; the largest has 8 CPUs and 1 GPUs; "
        "lower resources.cpus or resources.gpus"
    )
    assert Resources(gpus=2.0).ranks == 2 and Resources(gpus=0.25).ranks == 1
