"""One trial from a file: it trains, resumes, and every mistake is one line with nothing written."""

import errno
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from archsearch.errors import (
    ArchsearchError,
    BackendError,
    CheckpointError,
    ConfigError,
    RuleError,
    StudyError,
    StudyLockedError,
    TaskError,
)
from archsearch.studies.engine.single import read_trial, run_trial
from archsearch.studies.files import records
from archsearch.studies.files.directory import TrialDirectory
from archsearch.studies.files.lock import driver_lock
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.training.config import choose_device, task_tokens
from archsearch.studies.training.language import load_model, plan_trial
from archsearch.studies.training.run import Step, Watch
from archsearch.studies.training.trial import evaluation_grid

CONFIG = """
rule: delta_net
model: {width: 16, heads: 1, layers: 1, mlp_ratio: 0}
tasks:
  mqar: {length: 16, pairs: 2, vocabulary: 16, evaluation: 8, tokens: 256}
  mqar_overwrite: {length: 16, pairs: 2, vocabulary: 16, evaluation: 8}
budget: {tokens: 128}
training: {batch_tokens: 32, learning_rate: 1e-2}
evaluations: 2
device: cpu
"""


def written(folder: Path, *more: str) -> tuple[Path, list[str]]:
    path = folder / "small.yaml"
    path.write_text(CONFIG)
    return path, [f"directory={folder}/trial", *more]


def steps_of(folder: Path, *overrides: str) -> tuple[list[str], list[str], Outcome]:
    steps: list[str] = []
    lines: list[str] = []

    @contextmanager
    def show(tokens: int) -> Generator[Watch, None, None]:
        def watch(step: Step) -> None:
            steps.append(f"{step.task} {step.step} {float(step.loss).hex()}")

        yield watch

    result = run_trial(read_trial(*written(folder, *overrides)), show, lines.append)
    return steps, lines, result.outcome


def test_a_trial_trains_to_its_end_and_keeps_what_it_measured(tmp_path: Path) -> None:
    steps, lines, outcome = steps_of(tmp_path)
    trial = TrialDirectory(tmp_path / "trial")
    result = trial.result()
    assert outcome is Outcome.COMPLETE and len(steps) == 12 and len(lines) == 2
    assert result is not None and result.tokens == 384 and [m.fraction for m in trial.curve()] == [0.5, 1.0]
    assert {"recall", "overwrite", "parameters", "state_bytes"} < set(result.values)
    said = ["It has had its whole budget: nothing is left to train"]
    assert steps_of(tmp_path) == ([], said, Outcome.COMPLETE)


def test_a_trial_cut_short_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    expected, _, _ = steps_of(whole)

    def full(path: Path) -> None:
        if path.name == "metrics-1.jsonl" and (path.parent / "checkpoint" / "latest.json").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(records, "watch", full)
    with pytest.raises(StudyError) as caught:
        steps_of(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/trial could not be written: the disk is full: free some space; run the same command again to go on"
        " from the newest checkpoint"
    )
    monkeypatch.undo()
    rest, lines, outcome = steps_of(tmp_path)
    assert lines[0] == "It goes on from its newest checkpoint, at 50%"
    assert outcome is Outcome.COMPLETE and rest == [step for step in expected if step in rest] and len(rest) == 6


def test_a_trial_whose_last_evaluation_is_lost_is_not_called_complete(tmp_path: Path) -> None:
    steps_of(tmp_path)
    for name in ("metrics-1.jsonl", "result.json"):
        (tmp_path / "trial" / name).unlink()
    with pytest.raises(
        StudyError, match=r"trial has the checkpoint of its whole budget and not the evaluation: restore"
    ):
        steps_of(tmp_path)
    assert TrialDirectory(tmp_path / "trial").result() is None


def test_an_unstable_trial_has_a_result_that_says_so(tmp_path: Path) -> None:
    _, _, outcome = steps_of(tmp_path, "training.learning_rate=1e30", "training.clip=0")
    result = TrialDirectory(tmp_path / "trial").result()
    assert outcome is Outcome.UNSTABLE and result is not None
    assert result.message.startswith("loss and gradient must be finite; got loss")


def test_the_trained_model_comes_back(tmp_path: Path) -> None:
    steps_of(tmp_path)
    config = read_trial(*written(tmp_path))
    plan = plan_trial(config)
    task = plan.entries[0].task
    model = load_model(config, tmp_path / "trial" / "checkpoint", "mqar", task.vocabulary)
    with torch.no_grad():
        values = task.evaluate(model)
    kept = TrialDirectory(tmp_path / "trial").curve()[-1].values
    assert values == {name: kept[name] for name in values}
    with pytest.raises(CheckpointError, match="must hold a model of task 'text'; it has mqar, mqar_overwrite"):
        load_model(config, tmp_path / "trial" / "checkpoint", "text", 257)
    with pytest.raises(CheckpointError, match="is of another model: it differs in embedding"):
        load_model(config, tmp_path / "trial" / "checkpoint", "mqar", 18)
    with pytest.raises(CheckpointError, match="holds no checkpoint: train the trial first"):
        load_model(config, tmp_path / "elsewhere", "mqar", 16)


def test_a_rule_may_be_given_as_text(tmp_path: Path) -> None:
    text = 'Rule("mine", delta_write(key("k"), value("v"), strength=gate("beta")), read(query("q")))'
    steps, _, outcome = steps_of(tmp_path, f"rule='{text}'")
    assert len(steps) == 12 and outcome is Outcome.COMPLETE


MISTAKES: list[tuple[Sequence[str], type[ArchsearchError], str]] = [
    (["trainning.clip=1"], ConfigError, "unknown key trainning.clip in FILE; did you mean training.clip?"),
    (
        ["tasks.mqar.pairs=5"],
        TaskError,
        "tasks.mqar.length must be >= 20 for 5 pairs and as many queries; got 16",
    ),
    (
        ["budget.tokens=null"],
        ConfigError,
        "tasks.mqar_overwrite.tokens must be a number, or budget.tokens for all tasks; got neither",
    ),
    (["graphs=true"], ConfigError, "graphs need a CUDA device; got cpu; leave graphs out"),
    (["seed=-1"], ConfigError, "seed must be >= 0; got -1"),
    (["tasks=null"], ConfigError, "tasks must be a mapping of its options; got None in FILE"),
    (["model.heads=3"], ConfigError, "width must be a multiple of heads; got width=16, heads=3"),
    (["rule=delta_nut"], RuleError, "unknown rule 'delta_nut'; did you mean delta_net?"),
]


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case[0][0])
def test_a_mistake_is_one_line_and_nothing_is_written(
    tmp_path: Path, case: tuple[Sequence[str], type[ArchsearchError], str]
) -> None:
    overrides, kind, message = case
    with pytest.raises(kind) as caught:
        steps_of(tmp_path, *overrides)
    where = f"{tmp_path}/small.yaml with directory={tmp_path}/trial {' '.join(overrides)}"
    assert message.replace("FILE", where) in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "trial").exists()


def test_a_directory_holds_one_trial(tmp_path: Path) -> None:
    steps_of(tmp_path)
    with pytest.raises(StudyError) as caught:
        steps_of(tmp_path, "seed=1")
    assert str(caught.value) == (
        f"{tmp_path}/trial was begun with seed = 0, the configuration has 1; choose another directory"
    )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(StudyError, match=r"a trial needs a directory of its own; .*full holds other files"):
        steps_of(tmp_path, f"directory={tmp_path}/full")


def test_two_processes_do_not_train_one_trial(tmp_path: Path) -> None:
    steps_of(tmp_path)
    with driver_lock(tmp_path / "trial" / "trial.lock"), pytest.raises(StudyLockedError):
        steps_of(tmp_path)


def test_a_backend_that_cannot_run_here_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match='backend "triton" needs a CUDA device'):
        steps_of(tmp_path, "backend=triton")
    assert not (tmp_path / "trial").exists()


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(ConfigError) as caught:
        choose_device("cuda")
    assert str(caught.value) == "device cuda needs a CUDA device; this machine has none; use device auto or cpu"


def test_a_task_without_tokens_takes_the_budgets(tmp_path: Path) -> None:
    config = read_trial(*written(tmp_path))
    assert task_tokens(config.tasks, config.budget) == {"mqar": 256, "mqar_overwrite": 128}
    assert evaluation_grid(config.evaluations, [1.0]) == [0.5, 1.0]
    assert read_trial(written(tmp_path)[0]).directory == Path("runs/small")
