"""Whose fault a trial's end was: the rule's teaches the sampler, the machine's is tried again, ours ends the study."""

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from optuna.trial import TrialState

from archsearch.studies.engine.endings import BugError
from archsearch.studies.engine.limits import Patience
from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import CrowdedOut, Outcome, Unbuildable
from archsearch.studies.workers.clerk import Clerk

Facts = Mapping[str, Any]


def _failing(error: Exception, *, at: float) -> Any:
    def body(clerk: Clerk) -> Facts:
        for step in range(1, 17):
            if step / 16 > at and clerk.proposal["origin"] == "proposal":
                raise type(error)(*error.args)
            clerk.record(step / 16, {"loss": float(step), "cost": 1.0}, 0.1)
            if not clerk.goes_on(step / 16):
                break
        return {}

    return body


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (MemoryError("no room"), "out_of_memory"),
        (Unbuildable("the rule is not affine"), "compile_error"),
    ],
)
def test_the_rules_fault_is_told_to_the_sampler(run: Any, tmp_path: Path, error: Exception, outcome: str) -> None:
    run(_failing(error, at=0.1), trials=2)
    trials = run.told(tmp_path / "study")[1:]
    assert [t.state for t in trials] == [TrialState.PRUNED] * 2
    assert [t.constraints for t in trials] == [{f"failed.{outcome}": 4.0}] * 2
    result = StudyDirectory(tmp_path / "study").trial(1).result()
    assert result is not None and result.tokens == 100 and str(error) in result.message


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_objective_that_is_not_finite_is_unstable_and_keeps_its_good_curve(
    run: Any, tmp_path: Path, value: float
) -> None:
    def body(clerk: Clerk) -> Facts:
        clerk.record(0.125, {"loss": 2.0, "cost": 1.0, "other": math.nan}, 0.1)
        clerk.record(0.1875, {"loss": value, "cost": 1.0}, 0.2)
        return {}

    run(body, trials=1)
    result = StudyDirectory(tmp_path / "study").trial(1).result()
    assert result is not None and result.outcome is Outcome.UNSTABLE
    assert (result.tokens, dict(result.values)) == (200, {"loss": 2.0, "cost": 1.0})
    assert result.message == f"Unstable: loss is {value} at 300 tokens"
    assert run.told(tmp_path / "study")[1].constraints == {"failed.unstable": 4.0}


def test_three_bugs_in_one_place_end_the_study(run: Any, tmp_path: Path) -> None:
    with pytest.raises(BugError) as error:
        run(_failing(ZeroDivisionError("ours"), at=0.1), trials=9)
    assert "ZeroDivisionError: ours" in error.value.traceback
    assert run.outcomes(tmp_path / "study")[1:] == ["bug"] * 3
    assert [t.state for t in run.told(tmp_path / "study")][1:] == [TrialState.FAIL] * 3


def test_a_missing_objective_is_our_bug(run: Any, tmp_path: Path) -> None:
    def body(clerk: Clerk) -> Facts:
        clerk.record(1.0, {"loss": 1.0} | ({"cost": 1.0} if clerk.number == 0 else {}), 0.1)
        return {}

    run(body, trials=2)
    result = StudyDirectory(tmp_path / "study").trial(1).result()
    assert result is not None and (result.outcome, result.message) == (Outcome.BUG, "the trial measured no cost")


def test_a_missing_objective_three_times_in_a_row_ends_the_study(run: Any, tmp_path: Path) -> None:
    def body(clerk: Clerk) -> Facts:
        clerk.record(1.0, {"loss": 1.0}, 0.1)
        return {}

    with pytest.raises(BugError) as error:
        run(body, trials=9)
    assert error.value.traceback == "the trial measured no cost\n"
    assert run.outcomes(tmp_path / "study") == ["bug"] * 3


def _keeping(clerk: Clerk) -> Facts:
    """Three evaluations with their checkpoints; the study is asked to stop at the first of trial 1."""
    study = StudyDirectory(clerk.trial.path.parents[1])
    clerk.trial.checkpoints.mkdir(exist_ok=True)
    kept = records.read_json(clerk.trial.checkpoints / "latest.json") or {"tokens": 0}
    for fraction in (0.25, 0.5, 1.0):
        if clerk.tokens(fraction) <= int(str(kept["tokens"])):
            continue
        clerk.record(fraction, {"loss": 1 / fraction, "cost": 1.0}, 0.1)
        records.write_json(clerk.trial.checkpoints / "latest.json", {"tokens": clerk.tokens(fraction)})
        if clerk.number == 1 and fraction < 0.5 and clerk.attempt == 1:
            study.ask_to_stop(now=False)
        if fraction < 1 and not clerk.goes_on(fraction):
            break
    return {}


def test_a_checkpoint_whose_evaluation_was_lost_is_told_of_before_anything_begins(run: Any, tmp_path: Path) -> None:
    run(_keeping, trials=1)
    trial = StudyDirectory(tmp_path / "study").trial(1)
    assert trial.result() is None and len(trial.curve()) == 1
    (trial.path / "metrics-1.jsonl").unlink()
    with pytest.raises(records.DamagedError) as error:
        run(_keeping, trials=1, on_begin=lambda: pytest.fail("the study is said to begin"))
    assert str(error.value) == (
        f"{trial.path} has a checkpoint at 400 tokens and no evaluation of it: restore its metrics from a copy of the "
        f"study, or remove {trial.checkpoints} to train it again"
    )
    shutil.rmtree(trial.checkpoints)
    run(_keeping, trials=1)
    assert run.outcomes(tmp_path / "study") == ["complete"] * 2 and len(trial.curve()) == 3


def test_an_evaluation_lost_on_the_way_is_no_fault_of_the_rule(run: Any, tmp_path: Path) -> None:
    def body(clerk: Clerk) -> Facts:
        if clerk.number == 1:
            clerk.goes_on(0.5)  # as of a checkpoint that it found
        return _keeping(clerk)

    run(body, trials=1)
    result = StudyDirectory(tmp_path / "study").trial(1).result()
    assert result is not None and result.outcome is Outcome.BUG
    assert "has a checkpoint at 800 tokens and no evaluation of it" in result.message
    assert run.told(tmp_path / "study")[1].state is TrialState.FAIL


def test_the_machines_fault_is_tried_again_and_teaches_nothing(run: Any, toy: ModuleType, tmp_path: Path) -> None:
    lost: list[int] = []

    def body(clerk: Clerk) -> Facts:
        if clerk.attempt < 3 and clerk.number == 1:
            lost.append(clerk.attempt)
            raise OSError(5, "Input/output error")
        return toy.ToyBody(0.0)(clerk)

    run(body, trials=3)
    run(trials=3, directory="whole")
    assert lost == [1, 2]
    assert run.summary(tmp_path / "study")[1] == run.summary(tmp_path / "whole")[1]


def test_a_lost_trial_keeps_its_slot_so_that_the_next_proposal_knows_its_end(
    run: Any, toy: ModuleType, tmp_path: Path
) -> None:
    def body(clerk: Clerk) -> Facts:
        if clerk.attempt < 3 and clerk.number in (2, 6):
            raise OSError(5, "Input/output error")
        return toy.ToyBody(0.0)(clerk)

    run(trials=8, directory="whole")
    executor = run(body, trials=8, patience=Patience(poll=0.01, back_off=0.1))
    numbers = [assignment.number for assignment in executor.started]
    assert numbers == sorted(numbers) and numbers.count(2) == 3
    assert run.summary(tmp_path / "study") == run.summary(tmp_path / "whole")


def test_a_trial_that_is_always_lost_is_given_up_without_blame(run: Any, tmp_path: Path) -> None:
    patience = Patience(poll=0.01, back_off=0.001, longest_back_off=0.002, attempts=4)
    executor = run(_failing(OSError(5, "Input/output error"), at=0.1), trials=1, patience=patience)
    assert [a.attempt for a in executor.started if a.number == 1] == [1, 2, 3, 4]
    assert run.outcomes(tmp_path / "study")[1] == "infrastructure"
    trial = run.told(tmp_path / "study")[1]
    assert trial.state is TrialState.FAIL and trial.constraints == {}


def test_a_silent_trial_is_killed_twice_and_then_has_timed_out(run: Any, tmp_path: Path) -> None:
    import threading

    gate = threading.Event()

    def body(clerk: Clerk) -> Facts:
        if clerk.number == 1:
            gate.wait(5)
            return {}
        clerk.record(1.0, {"loss": 1.0, "cost": 1.0}, 0.1)
        return {}

    executor = run(body, trials=2, patience=Patience(poll=0.01, silence=0.2))
    gate.set()
    assert executor.killed == [1, 1]
    assert run.outcomes(tmp_path / "study") == ["complete", "timeout", "complete"]


def test_a_trial_crowded_out_of_a_shared_gpu_is_tried_once_more_alone(
    run: Any, toy: ModuleType, tmp_path: Path
) -> None:
    live: set[int] = set()
    beside: list[set[int]] = []

    def body(clerk: Clerk) -> Facts:
        live.add(clerk.number)
        try:
            if clerk.number == 1 and not clerk.alone:
                raise CrowdedOut("CUDA out of memory")
            if clerk.number == 2 and clerk.alone:
                raise MemoryError("too large for a whole GPU too")
            if clerk.number == 2:
                raise CrowdedOut("CUDA out of memory")
            if clerk.alone:
                beside.append(live - {clerk.number})
            return toy.ToyBody(0.0)(clerk)
        finally:
            live.discard(clerk.number)

    executor = run(body, trials=3, slots=3)
    assert sorted((a.number, a.attempt, a.alone) for a in executor.started if a.number in (1, 2)) == [
        (1, 1, False),
        (1, 2, True),
        (2, 1, False),
        (2, 2, True),
    ]
    assert beside == [set()]
    assert run.outcomes(tmp_path / "study")[1:3] == ["complete", "out_of_memory"]
