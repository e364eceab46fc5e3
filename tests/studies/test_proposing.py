"""What is proposed: nothing twice, nothing that makes no point, and nothing once the space is spent."""

from pathlib import Path
from types import ModuleType
from typing import Any

from optuna.trial import TrialState

from archsearch.errors import RuleError
from archsearch.holes import Choose, OneOf
from archsearch.studies.evidence.rows import read_evidence
from archsearch.studies.files.directory import StudyDirectory


def test_a_repeated_variant_is_not_run_twice(run: Any, toy: ModuleType, tmp_path: Path) -> None:
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
    assert [t.state for t in run.told(tmp_path / "study")[-60:]] == [TrialState.FAIL] * 60


def test_a_spent_space_ends_the_study_after_few_repetitions(run: Any, toy: ModuleType, tmp_path: Path) -> None:
    kinds = ("a", "b", "c", "d", "e", "f")

    def resolve(choose: Choose) -> Any:
        label = str(choose("kind", OneOf(kinds, kinds)))
        return toy.ToyPoint({"kind": label, "kind=down/rate": (1 + kinds.index(label)) / 10})

    baseline = {"first": {"kind": "a"}}
    said: list[str] = []
    run(trials=100, plan=toy.plan(baselines=baseline), **{"resolve": resolve, "announce": said.append})
    ends = run.outcomes(tmp_path / "study")
    assert len([end for end in ends if end != "duplicate"]) == len(kinds)
    assert len(ends) < 60 and ends[-3:] == ["duplicate"] * 3
    assert said[-1] == "the space is spent: 6 variants were tried, and nothing else is left"
    assert StudyDirectory(tmp_path / "study").is_spent()
    run(trials=200, plan=toy.plan(baselines=baseline), **{"resolve": resolve})
    assert run.outcomes(tmp_path / "study") == ends


def test_choices_that_make_no_point_are_told_and_the_study_goes_on(run: Any, toy: ModuleType, tmp_path: Path) -> None:
    kinds = ("a", "b", "c")

    def resolve(choose: Choose) -> Any:
        label = str(choose("kind", OneOf(kinds, kinds)))
        if label == "b":
            raise RuleError("a rule must read once; got none\n  where it stands")
        return toy.ToyPoint({"kind": label, "kind=down/rate": (1 + kinds.index(label)) / 10})

    run(trials=30, plan=toy.plan(baselines={}), **{"resolve": resolve})
    ends = run.outcomes(tmp_path / "study")
    assert sorted(end for end in ends if end != "duplicate") == ["compile_error", "complete", "complete"]
    failed = StudyDirectory(tmp_path / "study").trial(ends.index("compile_error"))
    result = failed.result()
    assert result is not None and result.message == "a rule must read once; got none"
    assert run.told(tmp_path / "study")[ends.index("compile_error")].state is TrialState.PRUNED
    assert [row.name for row in read_evidence(StudyDirectory(tmp_path / "study")).judged], "readers take it"
    run(trials=30, plan=toy.plan(baselines={}), **{"resolve": resolve})
    assert run.outcomes(tmp_path / "study") == ends
