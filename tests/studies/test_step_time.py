"""Step times are measured once a structure, by one process at a time, and are values of a trial."""

import threading
from pathlib import Path

import torch

from archsearch.mixers.models.options import Model
from archsearch.spaces.options import Budget, Training
from archsearch.studies.files import records
from archsearch.studies.tasks.mqar import MqarOptions
from archsearch.studies.tasks.registry import Tasks
from archsearch.studies.training.card import alone_on, training_on
from archsearch.studies.training.config import TrialConfig
from archsearch.studies.training.language import plan_trial
from archsearch.studies.training.timing import STEP_TIME, step_milliseconds
from archsearch.studies.training.trial import Plan

CPU = torch.device("cpu")


def plan() -> Plan:
    tasks = Tasks(mqar=MqarOptions(length=16, pairs=2, vocabulary=16, evaluation=4))
    model = Model(width=16, heads=2, layers=1, mlp_ratio=0)
    training = Training(batch_tokens=32)
    return plan_trial(TrialConfig("delta_net", tasks, model, None, training, Budget(tokens=64), device="cpu"))


def test_a_structure_is_measured_once(tmp_path: Path) -> None:
    file = tmp_path / "timing.jsonl"
    first = step_milliseconds(plan(), "a", file)
    assert first > 0
    assert step_milliseconds(plan(), "a", file) == first
    step_milliseconds(plan(), "b", file)
    assert [line["structure"] for line in records.read_lines(file)] == ["a", "b"]
    assert records.read_lines(file)[0][STEP_TIME] == first


def test_who_measures_waits_for_those_who_train_and_is_not_joined() -> None:
    order: list[str] = []
    training, measuring, free = threading.Event(), threading.Event(), threading.Event()

    def train_first() -> None:
        with training_on(CPU), training_on(CPU):  # trainings do not wait for each other
            training.set()
            assert free.wait(10)
            order.append("trained")

    def measure() -> None:
        measuring.set()
        with alone_on(CPU):
            order.append("measured")

    threads = [threading.Thread(target=train_first), threading.Thread(target=measure)]
    threads[0].start()
    assert training.wait(10)
    threads[1].start()
    assert measuring.wait(10)
    assert order == []
    free.set()
    for thread in threads:
        thread.join(10)
    with training_on(CPU):
        order.append("trained again")
    assert order == ["trained", "measured", "trained again"]
