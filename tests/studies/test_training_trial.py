"""A trial that is killed and resumed has the losses of one that never was; checkpoints are whole or refused."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archsearch
from archsearch.errors import CheckpointError, ConfigError
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.mixers.zoo import rules
from archsearch.spaces.options import Precision, Schedule, Training
from archsearch.studies.files import records as records  # the child process puts its fault there
from archsearch.studies.files.outcomes import Outcome, Unstable, classify
from archsearch.studies.tasks.mqar import MqarOptions
from archsearch.studies.tasks.overwrite import OverwriteOptions
from archsearch.studies.tasks.task import Batch, Task
from archsearch.studies.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from archsearch.studies.training.optimiser import build_optimiser
from archsearch.studies.training.run import Run, Step
from archsearch.studies.training.schedule import learning_rate
from archsearch.studies.training.trial import Entry, Plan, evaluation_grid, train_trial

CPU = torch.device("cpu")


class Tiny(nn.Module):
    """An embedding, a recurrent layer with dropout, a tied head and a constant that must not decay."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.layer = nn.GRU(8, 8, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(8, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.constant = nn.Parameter(torch.ones(2, 2))
        self.constant._no_weight_decay = True  # pyright: ignore[reportAttributeAccessIssue]
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        if self.training:
            self.get_buffer("seen").add_(1)
        hidden, _ = self.layer(self.dropout(self.embedding(tokens)))
        return self.head(hidden * self.constant.mean())


class Alone:
    """A supervisor that keeps everything in memory and stops where it is told."""

    def __init__(self, rungs: Sequence[float] = (1.0,), stop: float = 2.0) -> None:
        self.rung_fractions = rungs
        self.stop = stop
        self.records: list[tuple[float, Mapping[str, float]]] = []

    def check_fence(self) -> None: ...

    def record(self, fraction: float, values: Mapping[str, float], seconds: float) -> None:
        self.records.append((fraction, values))

    def goes_on(self, fraction: float) -> bool:
        return fraction < self.stop


def plan(learning_rate: float = 1e-2) -> Plan:
    tasks: list[Task] = [
        MqarOptions(length=16, pairs=2, vocabulary=20, evaluation=20).build(),
        OverwriteOptions(length=16, pairs=2, vocabulary=20, evaluation=20).build(),
    ]
    return Plan(
        entries=[Entry(task, tokens) for task, tokens in zip(tasks, (1280, 640), strict=True)],
        build=lambda task: Tiny(task.vocabulary),
        training=Training(batch_tokens=64, learning_rate=learning_rate),
        seed=5,
        device=CPU,
        evaluations=4,
        identity={"rule": "tiny"},
    )


def losses_of(directory: Path, supervisor: Alone, kill: Callable[[Step], None] | None = None) -> dict[str, str]:
    losses: dict[str, str] = {}

    def watch(step: Step) -> None:
        losses[f"{step.task} {step.step}"] = float(step.loss).hex()
        if kill is not None:
            kill(step)

    train_trial(plan(), directory, supervisor, watch)
    return losses


CHILD = """
import importlib.util, json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
source, directory, log, mode, at = sys.argv[1:]
spec = importlib.util.spec_from_file_location("trial_test", source)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
file = open(log, "a")
def watch(step):
    file.write(json.dumps([step.task, step.step, float(step.loss).hex()]) + "\\n"); file.flush()
    if mode == "step" and f"{step.task} {step.step}" == at: die()
if mode == "write":
    writes = []
    def fault(path):
        writes.append(path.name)
        if path.name == at: die()
    module.records.watch = fault
class Printed(module.Alone):
    def record(self, fraction, values, seconds):
        file.write(json.dumps(["record", fraction, values]) + "\\n"); file.flush()
module.train_trial(module.plan(), Path(directory), Printed(), watch)
"""


def test_killed_and_resumed_the_losses_are_the_same_to_the_last_bit(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = Alone()
        expected = losses_of(tmp_path / "whole", alone)
    finally:
        torch.set_num_threads(threads)
    values = {str(fraction): dict(record) for fraction, record in alone.records}
    kills = [("step", "mqar 7"), ("write", "latest.json"), ("write", "960.safetensors"), ("step", "mqar_overwrite 9")]
    log = tmp_path / "log"
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(archsearch.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    for mode, at in [*kills, ("", "")]:
        command = [sys.executable, "-c", CHILD, __file__, str(tmp_path / "killed"), str(log), mode, at]
        child = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert child.returncode == (-9 if mode else 0), child.stderr
    seen: set[str] = set()
    for task, step, loss in map(json.loads, log.read_text().splitlines()):
        if task == "record":
            assert loss == values[str(step)]
            continue
        assert expected[f"{task} {step}"] == loss, "a step made again has another loss"
        seen.add(f"{task} {step}")
    assert seen == set(expected)


def test_other_random_draws_of_the_process_change_nothing(tmp_path: Path) -> None:
    class Drawing(Alone):
        def goes_on(self, fraction: float) -> bool:
            torch.manual_seed(len(self.records))
            return super().goes_on(fraction)

    assert losses_of(tmp_path / "one", Alone()) == losses_of(tmp_path / "two", Drawing())


def test_tasks_advance_side_by_side_through_evaluations_and_rungs(tmp_path: Path) -> None:
    alone = Alone(rungs=(1 / 16, 0.25, 1.0))
    losses = losses_of(tmp_path, alone)
    assert [fraction for fraction, _ in alone.records] == [1 / 16, 0.25, 0.5, 0.75, 1.0]
    assert len(losses) == 30
    assert {"recall", "recall_2", "overwrite", "overwrite_stale"} < set(alone.records[0][1])


def test_a_stop_ends_the_trial_and_is_remembered(tmp_path: Path) -> None:
    alone = Alone(stop=0.5)
    losses_of(tmp_path, alone)
    assert alone.records[-1][0] == 0.5
    again = Alone(stop=0.5)
    assert losses_of(tmp_path, again) == {} and again.records == []


def test_a_trial_that_is_over_keeps_its_weights_without_moments_and_is_not_gone_on_with(tmp_path: Path) -> None:
    losses_of(tmp_path / "half", Alone(stop=0.5))
    losses_of(tmp_path / "whole", Alone())
    half, whole = (read_checkpoint(tmp_path / name) for name in ("half", "whole"))
    assert half is not None and whole is not None
    moments = {name for name in half.tensors if "/optimiser/" in name}
    assert moments and set(whole.tensors) == set(half.tensors) - moments
    assert losses_of(tmp_path / "whole", again := Alone()) == {} and again.records == []


def test_learning_happens() -> None:
    task = MqarOptions(length=8, pairs=1, vocabulary=8, random_non_queries=False, evaluation=100).build()
    run = Run(task, Tiny(8), Training(learning_rate=2e-2, batch_tokens=256), 60_000, 0, CPU)
    before = run.evaluate()
    run.advance(1.0)
    after = run.evaluate()
    assert after["recall_loss"] < 0.7 * before["recall_loss"] and run.fraction == 1


def test_a_loss_that_is_not_finite_ends_the_run_as_unstable() -> None:
    class Broken(Tiny):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens) * (float("nan") if float(self.get_buffer("seen")) == 3 else 1)

    task = MqarOptions(length=8, pairs=1, vocabulary=8, evaluation=10).build()
    run = Run(task, Broken(8), Training(batch_tokens=64), 640, 0, CPU)
    with pytest.raises(Unstable) as caught:
        run.advance(1.0)
    assert str(caught.value) == (
        "loss and gradient must be finite; got loss nan and gradient norm nan on mqar by step 3 of 10;"
        " lower training.learning_rate or lengthen training.warmup"
    )
    assert classify(caught.value) is Outcome.UNSTABLE


def test_memory_that_runs_out_has_its_own_class() -> None:
    class Greedy(Tiny):
        def forward(self, tokens: Tensor) -> Tensor:
            return torch.empty(2**60)

    run = Run(MqarOptions(length=8, pairs=1, vocabulary=8).build(), Greedy(8), Training(), 640, 0, CPU)
    with pytest.raises(MemoryError) as caught:
        run.advance(1.0)
    assert classify(caught.value) is Outcome.OUT_OF_MEMORY


def test_a_model_that_does_not_fit_has_run_out_of_memory_too(tmp_path: Path) -> None:
    with pytest.raises(MemoryError, match=r"GiB were asked for and not there; lower training\.batch_tokens or"):
        train_trial(replace(plan(), build=lambda task: Tiny(2**55)), tmp_path, Alone())


def test_graphs_need_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="graphs need a CUDA device; got cpu; leave graphs out"):
        train_trial(replace(plan(), graphs=True), tmp_path, Alone())


def test_bfloat16_needs_a_gpu() -> None:
    with pytest.raises(ConfigError, match=r"training.precision bfloat16 needs a CUDA device; got cpu"):
        Run(MqarOptions().build(), Tiny(8192), Training(precision=Precision.BFLOAT16), 640, 0, CPU)


def test_constants_embeddings_and_biases_do_not_decay() -> None:
    model = Tiny(12)
    optimiser = build_optimiser(model, Training(weight_decay=0.3))
    decayed, spared = optimiser.param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.3, 0.0)
    assert sorted(names[id(p)] for p in decayed["params"]) == ["layer.weight_hh_l0", "layer.weight_ih_l0"]
    assert {"embedding.weight", "constant", "layer.bias_hh_l0"} < {names[id(p)] for p in spared["params"]}


def test_gate_constants_and_the_embedding_of_a_language_model_do_not_decay() -> None:
    model = LanguageModel(rules["kda"], Model(width=16, heads=2, layers=1), None, 12)
    decayed, spared = build_optimiser(model, Training()).param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    spared_names = {names[id(p)] for p in spared["params"]}
    assert any(name.startswith("embedding") for name in spared_names)
    assert any(name.endswith("A_log") for name in spared_names) and any("dt_bias" in name for name in spared_names)
    assert all(names[id(p)].rsplit(".", 1)[-1] not in ("A_log", "dt_bias") for p in decayed["params"])
    assert {p.ndim for p in decayed["params"]} <= {2, 3}


@pytest.mark.parametrize("schedule", Schedule)
def test_the_schedule_warms_up_holds_and_comes_down(schedule: Schedule) -> None:
    training = Training(learning_rate=2.0, schedule=schedule, warmup=0.1, decay=0.2, floor=0.1)
    rates = [learning_rate(training, step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert max(rates) == 2.0 and rates[10:] == sorted(rates[10:], reverse=True)
    assert 0.2 < rates[-1] < 0.3
    assert (rates[79] == 2.0) == (schedule is Schedule.WSD)


def test_the_grid_holds_the_rungs_and_ends_with_the_budget() -> None:
    assert evaluation_grid(4, [1 / 64, 0.25, 1.0]) == pytest.approx([1 / 64, 0.25, 0.5, 0.75, 1.0])
    assert evaluation_grid(1, []) == [1.0]


def test_more_evaluations_than_steps_are_one_a_step(tmp_path: Path) -> None:
    supervisor = Alone(rungs=(1 / 1000, 1.0))
    train_trial(replace(plan(), evaluations=1000), tmp_path, supervisor)
    fractions = [fraction for fraction, _ in supervisor.records]
    assert len(fractions) == 32  # after each of 20 and 10 steps, at a rung before all of them, and at the end
    assert fractions[0] == 1 / 1000 and fractions[-1] == 1.0


def kept(tokens: int) -> Checkpoint:
    return Checkpoint(tokens, {"a/b": torch.arange(tokens)}, {"step": tokens, "text": "x"})


def test_a_checkpoint_is_read_as_it_was_written_and_two_are_kept(tmp_path: Path) -> None:
    for tokens in (1, 2, 3):
        write_checkpoint(tmp_path, kept(tokens))
    read = read_checkpoint(tmp_path)
    assert read is not None and read.tokens == 3 and read.record == {"step": 3, "text": "x"}
    assert torch.equal(read.tensors["a/b"], torch.arange(3))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["2.json", "2.safetensors", "3.json", "3.safetensors", "latest.json"]
    assert read_checkpoint(tmp_path / "nowhere") is None


@pytest.mark.parametrize("name", ["2.safetensors", "2.json", "latest.json"])
def test_a_full_disk_leaves_the_checkpoint_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_checkpoint(tmp_path, kept(1))
    sync = os.fsync
    pending = {"2.safetensors": 0, "2.json": 1, "latest.json": 3}[name]

    def full(descriptor: int) -> None:
        nonlocal pending
        pending -= 1
        if pending < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError) as caught:
        write_checkpoint(tmp_path, kept(2))
    assert str(caught.value) == (
        f"no checkpoint of 2 tokens in {tmp_path}: the disk is full; what was written before is whole:"
        " free some space and run the same command again"
    )
    assert classify(caught.value) is Outcome.INFRASTRUCTURE
    monkeypatch.undo()
    read = read_checkpoint(tmp_path)
    assert read is not None and read.tokens == 1
    assert not list(tmp_path.glob(".*"))


DAMAGES: dict[str, tuple[str, bytes]] = {
    "DIR/2.safetensors is damaged: its SHA-256 must be SUM..., as its .json says": ("2.safetensors", b"garbage"),
    "DIR/2.json is no checkpoint's: it must hold one JSON object": ("2.json", b"[1]"),
    "DIR/2.json is no checkpoint: it must have format 'archsearch checkpoint 1', got None": ("2.json", b"{}"),
    "DIR/latest.json is no checkpoint's: it must hold one JSON object": ("latest.json", b"{"),
    "DIR/latest.json must hold a number of tokens; it is no checkpoint's": ("latest.json", b"{}"),
    "DIR/latest.json names 9.json; there is no such file: copy it back": ("latest.json", b'{"tokens": 9}'),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_file_that_is_no_checkpoint_is_refused_in_one_line(tmp_path: Path, message: str) -> None:
    write_checkpoint(tmp_path, kept(2))
    record: dict[str, Any] = json.loads((tmp_path / "2.json").read_text())
    name, data = DAMAGES[message]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(tmp_path)
    assert str(caught.value) == message.replace("DIR", str(tmp_path)).replace("SUM", record["sha256"][:12])


def test_the_checkpoint_of_another_trial_is_refused(tmp_path: Path) -> None:
    losses_of(tmp_path, Alone())
    latest = read_checkpoint(tmp_path)
    assert latest is not None
    write_checkpoint(tmp_path, Checkpoint(9999, latest.tensors, {**latest.record, "identity": {"rule": "other"}}))
    with pytest.raises(CheckpointError, match="is of another trial"):
        train_trial(plan(), tmp_path, Alone())


def test_tensors_of_another_model_are_refused_by_name() -> None:
    run = Run(MqarOptions().build(), Tiny(12), Training(), 64, 0, CPU)
    tensors = run.tensors()
    with pytest.raises(CheckpointError, match=r"must hold model/constant; it does not: it is of another model"):
        run.restore({name: t for name, t in tensors.items() if name != "model/constant"}, 0)
    with pytest.raises(CheckpointError, match=r"model/constant must have shape \[2, 2\]; it has \[3\]: another model"):
        run.restore({**tensors, "model/constant": torch.ones(3)}, 0)


def test_no_step_depends_on_a_watch_or_on_where_an_advance_ended() -> None:
    def train(fractions: Sequence[float]) -> dict[str, Tensor]:
        task = MqarOptions(length=8, pairs=1, vocabulary=12).build()
        torch.manual_seed(1)
        run = Run(task, Tiny(12), Training(batch_tokens=64), 640, 0, CPU)
        for fraction in fractions:
            run.advance(fraction)
        return run.tensors()

    one, other = train([1.0]), train([0.1, 0.35, 0.35, 1.0])
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_every_step_has_its_own_batch() -> None:
    task = MqarOptions(length=8, pairs=1, vocabulary=12).build()
    drawn: list[Batch] = [task.train_batch(0, step, 8) for step in range(5)]
    assert not any(torch.equal(drawn[i].tokens, drawn[i + 1].tokens) for i in range(4))
