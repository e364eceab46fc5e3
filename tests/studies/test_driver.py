"""The driver, with trials of arithmetic in threads: every trial ends once, truthfully told, whatever its body does."""

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from archsearch.errors import RuleError, StudyError
from archsearch.holes import Choose, OneOf
from archsearch.studies.engine.driver import BugError, Patience
from archsearch.studies.evidence.rows import read_evidence
from archsearch.studies.files import records
from archsearch.studies.files.decisions import read_decisions
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import CrowdedOut, Outcome, Unbuildable
from archsearch.studies.search.rungs import RungOptions
from archsearch.studies.search.samplers import SamplerOptions
from archsearch.studies.tasks.direction import Direction
from archsearch.studies.workers.clerk import Clerk

Run = Callable[..., Any]
Facts = Mapping[str, Any]


@pytest.fixture
def run(toy: ModuleType, threads: Any, tmp_path: Path) -> Run:
    def carry(body: Any = None, *, trials: int = 8, slots: int = 1, directory: str = "study", **options: Any) -> Any:
        executor = threads(body or toy.ToyBody(0.0), slots)
        toy.study(tmp_path / directory, lambda: executor, trials=trials, **options)
        return executor

    return carry


def told(path: Path) -> list[FrozenTrial]:
    storage = JournalStorage(JournalFileBackend(str(path / "optuna.journal")))
    return optuna.load_study(study_name=None, storage=storage).trials


def outcomes(path: Path) -> list[str]:
    found = StudyDirectory(path).trials().values()
    return [result.outcome.value for trial in found if (result := trial.result()) is not None]


def summary(path: Path) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for number, trial in StudyDirectory(path).trials().items():
        result, proposal = trial.result(), trial.proposal()
        assert result is not None and proposal is not None
        rows.append((number, proposal["choices"], result.outcome, result.tokens, dict(result.values)))
    return rows


def test_every_trial_ends_once_with_what_its_file_says(run: Run, toy: ModuleType, tmp_path: Path) -> None:
    run(trials=12)
    study, trials = StudyDirectory(tmp_path / "study"), told(tmp_path / "study")
    assert [t.number for t in trials] == list(study.trials())
    names = {"complete": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "duplicate": TrialState.FAIL}
    for trial, outcome in zip(trials, outcomes(study.path), strict=True):
        assert trial.state is names[outcome] and trial.user_attrs["outcome"] == outcome
        result = study.trial(trial.number).result()
        assert result is not None
        if trial.state is TrialState.COMPLETE:
            assert trial.values == [result.values["loss"], result.values["cost"]]
        else:
            assert trial.values is None
    assert sum(t.user_attrs["origin"] == "proposal" and t.state is not TrialState.FAIL for t in trials) == 12


def test_baselines_run_first_and_are_never_stopped(run: Run, tmp_path: Path) -> None:
    run(trials=10)
    first = told(tmp_path / "study")[0]
    assert first.user_attrs["origin"] == "baseline:middle" and first.state is TrialState.COMPLETE
    assert all(not d.stop for d in read_decisions(tmp_path / "study/rungs.jsonl") if d.trial == 0)


def test_a_stopped_trial_says_how_far_it_came(run: Run, tmp_path: Path) -> None:
    run(trials=14)
    stopped = {d.trial: d for d in read_decisions(tmp_path / "study/rungs.jsonl") if d.stop}
    assert stopped
    for number, decision in stopped.items():
        trial = told(tmp_path / "study")[number]
        assert trial.state is TrialState.PRUNED
        assert trial.constraints == {"rungs_left": pytest.approx(1 - decision.rung + decision.better)}
        assert trial.user_attrs["constraint.rungs_left"] == trial.constraints["rungs_left"]


def test_free_passes_reach_the_full_budget(run: Run, tmp_path: Path) -> None:
    run(trials=12)
    study = StudyDirectory(tmp_path / "study")
    passes = [n for n, trial in study.trials().items() if n % 5 == 4 and not (trial.proposal() or {})["duplicate_of"]]
    results = [study.trial(n).result() for n in passes]
    assert passes and all(result and result.outcome is Outcome.COMPLETE for result in results)


def test_the_same_study_again_adds_nothing_and_more_trials_continue_it(run: Run, tmp_path: Path) -> None:
    run(trials=6)
    before = summary(tmp_path / "study")
    assert run(trials=6).started == []
    assert summary(tmp_path / "study") == before
    run(trials=9)
    assert summary(tmp_path / "study")[: len(before)] == before
    run(trials=9, directory="straight")
    assert summary(tmp_path / "study") == summary(tmp_path / "straight")


def test_a_changed_question_is_refused_with_its_first_difference(run: Run, toy: ModuleType, tmp_path: Path) -> None:
    run(trials=2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(StudyError) as error:
        run(trials=2, plan=toy.plan(rungs=RungOptions(count=3, eta=4, min_peers=3)))
    assert str(error.value) == (
        f"{tmp_path / 'study'} was begun with rungs.eta = 2, the configuration has 4; "
        "a changed question is a new study: choose another directory"
    )
    with pytest.raises(StudyError, match="space = toy, the configuration has other"):
        run(trials=2, plan=toy.plan(question={"space": "other"}))
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "driver.lock"}
    assert after == {path: data for path, data in before.items() if path.name != "driver.lock"}


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
def test_the_rules_fault_is_told_to_the_sampler(run: Run, tmp_path: Path, error: Exception, outcome: str) -> None:
    run(_failing(error, at=0.1), trials=2)
    trials = told(tmp_path / "study")[1:]
    assert [t.state for t in trials] == [TrialState.PRUNED] * 2
    assert [t.constraints for t in trials] == [{f"failed.{outcome}": 4.0}] * 2
    result = StudyDirectory(tmp_path / "study").trial(1).result()
    assert result is not None and result.tokens == 100 and str(error) in result.message


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_objective_that_is_not_finite_is_unstable_and_keeps_its_good_curve(
    run: Run, tmp_path: Path, value: float
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
    assert told(tmp_path / "study")[1].constraints == {"failed.unstable": 4.0}


def test_three_bugs_in_one_place_end_the_study(run: Run, tmp_path: Path) -> None:
    with pytest.raises(BugError) as error:
        run(_failing(ZeroDivisionError("ours"), at=0.1), trials=9)
    assert "ZeroDivisionError: ours" in error.value.traceback
    assert outcomes(tmp_path / "study")[1:] == ["bug"] * 3
    assert [t.state for t in told(tmp_path / "study")][1:] == [TrialState.FAIL] * 3


def test_a_missing_objective_is_our_bug(run: Run, tmp_path: Path) -> None:
    def body(clerk: Clerk) -> Facts:
        clerk.record(1.0, {"loss": 1.0} | ({"cost": 1.0} if clerk.number == 0 else {}), 0.1)
        return {}

    run(body, trials=2)
    result = StudyDirectory(tmp_path / "study").trial(1).result()
    assert result is not None and (result.outcome, result.message) == (Outcome.BUG, "the trial measured no cost")


def test_the_machines_fault_is_tried_again_and_teaches_nothing(run: Run, toy: ModuleType, tmp_path: Path) -> None:
    lost: list[int] = []

    def body(clerk: Clerk) -> Facts:
        if clerk.attempt < 3 and clerk.number == 1:
            lost.append(clerk.attempt)
            raise OSError(28, "No space left on device")
        return toy.ToyBody(0.0)(clerk)

    run(body, trials=3)
    run(trials=3, directory="whole")
    assert lost == [1, 2]
    assert summary(tmp_path / "study")[1] == summary(tmp_path / "whole")[1]


def test_a_lost_trial_keeps_its_slot_so_that_the_next_proposal_knows_its_end(
    run: Run, toy: ModuleType, tmp_path: Path
) -> None:
    def body(clerk: Clerk) -> Facts:
        if clerk.attempt < 3 and clerk.number in (2, 6):
            raise OSError(5, "Input/output error")
        return toy.ToyBody(0.0)(clerk)

    run(trials=8, directory="whole")
    executor = run(body, trials=8, patience=Patience(poll=0.01, back_off=0.1))
    numbers = [assignment.number for assignment in executor.started]
    assert numbers == sorted(numbers) and numbers.count(2) == 3
    assert summary(tmp_path / "study") == summary(tmp_path / "whole")


def test_a_trial_that_is_always_lost_is_given_up_without_blame(run: Run, tmp_path: Path) -> None:
    patience = Patience(poll=0.01, back_off=0.001, longest_back_off=0.002, attempts=4)
    executor = run(_failing(OSError(5, "Input/output error"), at=0.1), trials=1, patience=patience)
    assert [a.attempt for a in executor.started if a.number == 1] == [1, 2, 3, 4]
    assert outcomes(tmp_path / "study")[1] == "infrastructure"
    trial = told(tmp_path / "study")[1]
    assert trial.state is TrialState.FAIL and trial.constraints == {}


def test_a_silent_trial_is_killed_twice_and_then_has_timed_out(run: Run, tmp_path: Path) -> None:
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
    assert outcomes(tmp_path / "study") == ["complete", "timeout", "complete"]


def test_a_repeated_variant_is_not_run_twice(run: Run, toy: ModuleType, tmp_path: Path) -> None:
    class Coarse(toy.ToyPoint):  # type: ignore[name-defined,misc]
        @property
        def variant_hash(self) -> str:
            return str(self.choices["kind"])

    executor = run(
        trials=4, plan=toy.plan(baselines={}), **{"resolve": lambda choose: Coarse(toy.resolve(choose).choices)}
    )
    assert len(executor.started) == 2
    found = StudyDirectory(tmp_path / "study").trials()
    first: dict[str, int] = {}
    for number, trial in found.items():
        proposal = trial.proposal()
        assert proposal is not None
        assert proposal["duplicate_of"] == first.get(proposal["variant_hash"])
        first.setdefault(proposal["variant_hash"], number)
    assert [t.state for t in told(tmp_path / "study")[-60:]] == [TrialState.FAIL] * 60


def test_a_spent_space_ends_the_study_after_few_repetitions(run: Run, toy: ModuleType, tmp_path: Path) -> None:
    kinds = ("a", "b", "c", "d", "e", "f")

    def resolve(choose: Choose) -> Any:
        label = str(choose("kind", OneOf(kinds, kinds)))
        return toy.ToyPoint({"kind": label, "kind=down/rate": (1 + kinds.index(label)) / 10})

    baseline = {"first": {"kind": "a"}}
    said: list[str] = []
    run(trials=100, plan=toy.plan(baselines=baseline), **{"resolve": resolve, "announce": said.append})
    ends = outcomes(tmp_path / "study")
    assert len([end for end in ends if end != "duplicate"]) == len(kinds)
    assert len(ends) < 60 and ends[-3:] == ["duplicate"] * 3
    assert said[-1] == "the space is spent: 6 variants were tried, and nothing else is left"
    assert StudyDirectory(tmp_path / "study").is_spent()
    run(trials=200, plan=toy.plan(baselines=baseline), **{"resolve": resolve})
    assert outcomes(tmp_path / "study") == ends


@pytest.mark.parametrize("lost", ["trials", "trials/00002", "trials/00002/trial.json", "trials/00004"])
def test_a_trial_whose_files_are_gone_is_not_gone_on_without(run: Run, tmp_path: Path, lost: str) -> None:
    run(trials=4)
    path = tmp_path / "study" / lost
    path.unlink() if path.is_file() else shutil.rmtree(path)
    before = [trial.state for trial in told(tmp_path / "study")]
    with pytest.raises(StudyError, match=r"is gone: restore it from a copy of the study$") as error:
        run(trials=6)
    assert str(path) in str(error.value)
    assert [trial.state for trial in told(tmp_path / "study")] == before


@pytest.mark.parametrize("line", ["{}", '{"op_code": 4, "worker_id": "x"}', '{"op_code": "x", "worker_id": 1}'])
def test_a_record_of_the_journal_that_means_nothing_is_named(run: Run, tmp_path: Path, line: str) -> None:
    run(trials=2)
    path = tmp_path / "study/optuna.journal"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(records.DamagedError, match=r"optuna.journal must hold JSON objects; .* lacks what was written"):
        run(trials=4)


def test_choices_that_make_no_point_are_told_and_the_study_goes_on(run: Run, toy: ModuleType, tmp_path: Path) -> None:
    kinds = ("a", "b", "c")

    def resolve(choose: Choose) -> Any:
        label = str(choose("kind", OneOf(kinds, kinds)))
        if label == "b":
            raise RuleError("a rule must read once; got none\n  where it stands")
        return toy.ToyPoint({"kind": label, "kind=down/rate": (1 + kinds.index(label)) / 10})

    run(trials=30, plan=toy.plan(baselines={}), **{"resolve": resolve})
    ends = outcomes(tmp_path / "study")
    assert sorted(end for end in ends if end != "duplicate") == ["compile_error", "complete", "complete"]
    failed = StudyDirectory(tmp_path / "study").trial(ends.index("compile_error"))
    result = failed.result()
    assert result is not None and result.message == "a rule must read once; got none"
    assert told(tmp_path / "study")[ends.index("compile_error")].state is TrialState.PRUNED
    assert [row.name for row in read_evidence(StudyDirectory(tmp_path / "study")).judged], "readers take it"
    run(trials=30, plan=toy.plan(baselines={}), **{"resolve": resolve})
    assert outcomes(tmp_path / "study") == ends


def test_a_stale_worker_is_shut_out_by_the_fence(run: Run, toy: ModuleType, tmp_path: Path) -> None:
    from archsearch.studies.workers.clerk import Assignment, Superseded

    run(trials=1)
    trial = StudyDirectory(tmp_path / "study").trial(1)
    stale = Clerk(Assignment(tmp_path / "study", 1, 1))
    before = {path.name: path.read_bytes() for path in trial.path.iterdir() if path.is_file()}
    trial.raise_fence(2)
    for write in (
        lambda: stale.record(1.0, {"loss": 0.0, "cost": 0.0}, 1.0),
        lambda: stale.finish(Outcome.COMPLETE, "", {}),
        lambda: Clerk(Assignment(tmp_path / "study", 1, 1)),
    ):
        with pytest.raises(Superseded):
            write()
    after = {path.name: path.read_bytes() for path in trial.path.iterdir() if path.is_file()}
    assert {name for name in after if after[name] != before.get(name)} == {"attempt.json"}
    assert trial.result() is None, "a result of an attempt that was shut out does not count"


def test_one_objective_has_its_values_at_the_rungs(run: Run, toy: ModuleType, tmp_path: Path) -> None:
    run(trials=10, plan=toy.plan({"loss": Direction.MINIMIZE}, sampler=SamplerOptions(startup=2)))
    stopped = [t for t in told(tmp_path / "study") if t.state is TrialState.PRUNED]
    assert stopped and all(set(t.intermediate_values) <= {400, 800} and t.intermediate_values for t in stopped)


@pytest.mark.parametrize("name", ["metrics-1.jsonl", "rungs.jsonl", "optuna.journal"])
def test_a_torn_last_line_loses_nothing(run: Run, tmp_path: Path, name: str) -> None:
    run(trials=5)
    whole = summary(tmp_path / "study")
    for path in (tmp_path / "study").rglob(name):
        with open(path, "ab") as file:
            file.write(b'{"torn": ')
    run(trials=5)
    assert summary(tmp_path / "study") == whole


class Crash(BaseException):
    pass


@pytest.mark.parametrize("name", ["optuna.journal", "rungs.jsonl", "checks.jsonl"])
def test_a_damaged_last_line_is_named(run: Run, tmp_path: Path, name: str) -> None:
    run(trials=4)
    with open(tmp_path / "study" / name, "ab") as file:
        file.write(b"garbage\n")
    with pytest.raises(records.DamagedError, match=rf"{name} must hold JSON objects; line \d+ is no JSON: restore it"):
        run(trials=4)


@pytest.mark.parametrize("name", ["trial.json", "attempt.json", "result.json", "metrics-1.jsonl"])
def test_a_damaged_trial_is_named_before_anything_is_said_to_begin(run: Run, tmp_path: Path, name: str) -> None:
    run(trials=4)
    (tmp_path / "study/trials/00002" / name).write_text("garbage\n")
    with pytest.raises(
        records.DamagedError, match=rf"00002/{name} must hold JSON objects; (it|line 1) is no JSON: res"
    ):
        run(trials=4, on_begin=lambda: pytest.fail("the study is said to begin"))


def test_a_driver_that_dies_before_any_of_its_writes_is_taken_up(run: Run, toy: ModuleType, tmp_path: Path) -> None:
    """One fault a run, before each durable write of the driver's protocol in turn, until a run ends without one."""
    run(trials=5, directory="whole")
    whole = summary(tmp_path / "whole")
    for fault in range(3, 60, 4):
        directory = f"study{fault}"
        written: list[Path] = []

        def watch(path: Path, fault: int = fault, written: list[Path] = written) -> None:
            if path.name in ("trial.json", "attempt.json", "rungs.jsonl") or path.name.startswith("decision"):
                written.append(path)
                if len(written) == fault:
                    raise Crash

        records.watch = watch
        crashed = False
        try:
            run(trials=5, directory=directory)
        except Crash:
            crashed = True
        records.watch = lambda path: None
        run(trials=5, directory=directory)
        assert summary(tmp_path / directory) == whole
        if not crashed:
            return
    raise AssertionError("the faults never ran past the last write")


def test_a_trial_crowded_out_of_a_shared_gpu_is_tried_once_more_alone(
    run: Run, toy: ModuleType, tmp_path: Path
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
    assert outcomes(tmp_path / "study")[1:3] == ["complete", "out_of_memory"]


def test_a_stopped_study_travels_as_one_archive_and_goes_on_elsewhere(
    run: Run, toy: ModuleType, tmp_path: Path
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
    assert summary(tmp_path / "elsewhere/deep") == summary(tmp_path / "whole")
    told_of = [path for path in (tmp_path / "elsewhere/deep").rglob("*.json*") if str(tmp_path) in path.read_text()]
    assert told_of == [], "no file names the place where the study was"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("/proc/study", "a study needs a directory that can be made; /proc/study cannot: No such file or directory"),
        ("/dev/null/study", "a study needs a directory that can be made; /dev/null/study cannot: Not a directory"),
    ],
)
def test_a_directory_that_cannot_be_is_refused_in_one_line(run: Run, place: str, message: str) -> None:
    with pytest.raises(StudyError) as error:
        run(trials=1, directory=place)
    assert str(error.value) == f"{message}; choose another"
