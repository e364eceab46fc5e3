"""Points whose sizes cannot be solved are told to the sampler with their distance, and never trained."""

from pathlib import Path
from types import ModuleType
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Outcome


def test_what_no_sizes_meet_is_told_as_a_constraint_and_not_trained(
    toy: ModuleType, threads: Any, tmp_path: Path
) -> None:
    class Heavy(toy.ToyPoint):
        def record(self) -> dict[str, object]:
            heavy = self.choices.get("kind=up/order", 0) > 4
            return {**super().record(), **({"missed": {"state_bytes": 0.25}} if heavy else {})}

    executor = threads(toy.ToyBody(0.0))
    toy.study(
        tmp_path / "study", lambda: executor, trials=12, resolve=lambda choose: Heavy(toy.resolve(choose).choices)
    )
    study = StudyDirectory(tmp_path / "study")
    storage = JournalStorage(JournalFileBackend(str(study.path / "optuna.journal")))
    trials = optuna.load_study(study_name=None, storage=storage).trials
    rungs = len(study.plan()["rung_tokens"])
    heavy = [n for n, t in study.trials().items() if (t.proposal() or {}).get("missed")]
    over = [n for n in heavy if (study.trial(n).proposal() or {})["duplicate_of"] is None]
    assert over and len(over) < len(trials)
    for number in over:
        result = study.trial(number).result()
        assert result is not None and result.outcome is Outcome.OVER_BUDGET
        assert result.message == "no sizes meet the budget: state_bytes 25% off"
        assert trials[number].state is TrialState.PRUNED
        assert trials[number].user_attrs["constraint.budget.state_bytes"] == rungs + 0.25
        assert dict(trials[number].constraints) == {"budget.state_bytes": rungs + 0.25}
    assert not {assignment.number for assignment in executor.started} & set(heavy)
