"""The driver, with trials of arithmetic in threads: every trial ends once, truthfully told, and a study goes on."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from optuna.trial import TrialState

from archsearch.errors import StudyError
from archsearch.studies.files.decisions import read_decisions
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.search.rungs import RungOptions
from archsearch.studies.search.samplers import SamplerOptions
from archsearch.studies.tasks.direction import Direction
from archsearch.studies.workers.clerk import Clerk

Facts = Mapping[str, Any]


def test_every_trial_ends_once_with_what_its_file_says(run: Any, toy: ModuleType, tmp_path: Path) -> None:
    run(trials=12)
    study, trials = StudyDirectory(tmp_path / "study"), run.told(tmp_path / "study")
    assert [t.number for t in trials] == list(study.trials())
    names = {"complete": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "duplicate": TrialState.FAIL}
    for trial, outcome in zip(trials, run.outcomes(study.path), strict=True):
        assert trial.state is names[outcome] and trial.user_attrs["outcome"] == outcome
        result = study.trial(trial.number).result()
        assert result is not None
        if trial.state is TrialState.COMPLETE:
            assert trial.values == [result.values["loss"], result.values["cost"]]
        else:
            assert trial.values is None
    assert sum(t.user_attrs["origin"] == "proposal" and t.state is not TrialState.FAIL for t in trials) == 12


def test_baselines_run_first_and_are_never_stopped(run: Any, tmp_path: Path) -> None:
    run(trials=10)
    first = run.told(tmp_path / "study")[0]
    assert first.user_attrs["origin"] == "baseline:middle" and first.state is TrialState.COMPLETE
    assert all(not d.stop for d in read_decisions(tmp_path / "study/rungs.jsonl") if d.trial == 0)


def test_what_is_imported_is_never_stopped_and_not_called_a_baseline(run: Any, tmp_path: Path) -> None:
    bad = [{"kind": "up", "kind=up/order": order} for order in (5, 6, 7, 8)]
    run(trials=3, imported=bad)
    decisions = read_decisions(tmp_path / "study/rungs.jsonl")
    kinds = {run.told(tmp_path / "study")[d.trial].user_attrs["origin"]: d for d in decisions if d.rank == d.peers - 1}
    assert not kinds["import"].stop and kinds["import"].reason == "a trial of an older study"


def test_a_stopped_trial_says_how_far_it_came(run: Any, tmp_path: Path) -> None:
    run(trials=14)
    stopped = {d.trial: d for d in read_decisions(tmp_path / "study/rungs.jsonl") if d.stop}
    assert stopped
    for number, decision in stopped.items():
        trial = run.told(tmp_path / "study")[number]
        assert trial.state is TrialState.PRUNED
        assert trial.constraints == {"rungs_left": pytest.approx(1 - decision.rung + decision.better)}
        assert trial.user_attrs["constraint.rungs_left"] == trial.constraints["rungs_left"]


def test_free_passes_reach_the_full_budget(run: Any, tmp_path: Path) -> None:
    run(trials=12)
    study = StudyDirectory(tmp_path / "study")
    passes = [n for n, trial in study.trials().items() if n % 5 == 4 and not (trial.proposal() or {})["duplicate_of"]]
    results = [study.trial(n).result() for n in passes]
    assert passes and all(result and result.outcome is Outcome.COMPLETE for result in results)


def test_the_same_study_again_adds_nothing_and_more_trials_continue_it(run: Any, tmp_path: Path) -> None:
    run(trials=6)
    before = run.summary(tmp_path / "study")
    assert run(trials=6).started == []
    assert run.summary(tmp_path / "study") == before
    run(trials=9)
    assert run.summary(tmp_path / "study")[: len(before)] == before
    run(trials=9, directory="straight")
    assert run.summary(tmp_path / "study") == run.summary(tmp_path / "straight")


def test_a_changed_question_is_refused_with_its_first_difference(run: Any, toy: ModuleType, tmp_path: Path) -> None:
    run(trials=2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(StudyError) as error:
        run(trials=2, plan=toy.plan(rungs=RungOptions(count=3, eta=4, min_peers=3)))
    assert str(error.value) == (
        f"{tmp_path / 'study'} was begun with rungs.eta = 2, the configuration has 4; "
        "a changed question is a new study: choose another directory"
    )
    with pytest.raises(StudyError, match="objectives = loss, cost, the configuration has cost, loss"):
        run(trials=2, plan=toy.plan({"cost": Direction.MINIMIZE, "loss": Direction.MINIMIZE}))
    with pytest.raises(StudyError, match="space = toy, the configuration has other"):
        run(trials=2, plan=toy.plan(question={"space": "other"}))
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "driver.lock"}
    assert after == {path: data for path, data in before.items() if path.name != "driver.lock"}


def test_a_study_that_finds_no_workers_keeps_the_configuration_that_it_had(
    run: Any, toy: ModuleType, tmp_path: Path
) -> None:
    """`on_begin` is what writes it: an address that nobody answers at would stand in the way of the next resume."""
    run(trials=2)
    begun: list[str] = []

    def nobody() -> Any:
        raise StudyError("no cluster there")

    with pytest.raises(StudyError, match="no cluster there"):
        toy.study(tmp_path / "study", nobody, trials=4, on_begin=lambda: begun.append("written"))
    assert not begun


def test_one_objective_has_its_values_at_the_rungs(run: Any, toy: ModuleType, tmp_path: Path) -> None:
    run(trials=10, plan=toy.plan({"loss": Direction.MINIMIZE}, sampler=SamplerOptions(startup=2)))
    stopped = [t for t in run.told(tmp_path / "study") if t.state is TrialState.PRUNED]
    assert stopped and all(set(t.intermediate_values) <= {400, 800} and t.intermediate_values for t in stopped)


def test_a_stopped_study_travels_as_one_archive_and_goes_on_elsewhere(
    run: Any, toy: ModuleType, tmp_path: Path
) -> None:
    run(trials=6, directory="whole")

    def asking(clerk: Clerk) -> Facts:
        if clerk.number == 3:
            clerk.record(1 / 16, {"loss": toy.quality(clerk.proposal["choices"]), "cost": 1.0}, 0.0)
            StudyDirectory(tmp_path / "study").ask_to_stop(now=False)
            clerk.goes_on(1 / 16)
        return toy.ToyBody(0.0)(clerk)

    assert not run(asking, trials=6).killed
    assert [trial.result() is None for trial in StudyDirectory(tmp_path / "study").trials().values()][-1]
    archive = shutil.make_archive(str(tmp_path / "travels"), "tar", tmp_path / "study")
    shutil.rmtree(tmp_path / "study")
    shutil.unpack_archive(archive, tmp_path / "elsewhere/deep")
    executor = run(trials=6, directory="elsewhere/deep")
    assert executor.started[0].number == 3 and executor.started[0].attempt == 2
    assert run.summary(tmp_path / "elsewhere/deep") == run.summary(tmp_path / "whole")
    told_of = [path for path in (tmp_path / "elsewhere/deep").rglob("*.json*") if str(tmp_path) in path.read_text()]
    assert told_of == [], "no file names the place where the study was"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("/proc/study", "a study needs a directory that can be made; /proc/study cannot: No such file or directory"),
        ("/dev/null/study", "a study needs a directory that can be made; /dev/null/study cannot: Not a directory"),
    ],
)
def test_a_directory_that_cannot_be_is_refused_in_one_line(run: Any, place: str, message: str) -> None:
    with pytest.raises(StudyError) as error:
        run(trials=1, directory=place)
    assert str(error.value) == f"{message}; choose another"
