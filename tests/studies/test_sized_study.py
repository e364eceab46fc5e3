"""A study whose space stands in its YAML and whose sizes are solved: trained as counted, and taken up again."""

from pathlib import Path
from typing import Any

import pytest

from archsearch.errors import ConfigError
from archsearch.studies.design.config import StudyConfig, read_study_config
from archsearch.studies.engine.run import run_study
from archsearch.studies.engine.single import read_trial
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.training.configuration import read_config
from archsearch.studies.workers.body import TrainingBody

CONFIG = """
space:
  rule: {{one_of: [gated_delta_net, kda]}}
  model: {{width: 16, heads: {{one_of: [1, 2]}}, layers: 1, mlp_ratio: 1.0}}
  training: {{learning_rate: {{log_uniform: [1e-3, 1e-2]}}, batch_tokens: 64}}
  budget: {{parameters: 6_000, state_bytes: gated_delta_net, tolerance: 0.02}}
directory: {home}/study
tasks: {{mqar: {{length: 16, pairs: 2, vocabulary: 16, evaluation: 8, tokens: 128}}}}
trials: 2
baselines: [gated_delta_net, kda]
evaluations: 1
rungs: {{count: 1}}
sampler: {{startup: 2}}
"""


def test_trials_are_trained_in_the_sizes_that_were_solved_and_go_on(tmp_path: Path, threads: Any) -> None:
    (tmp_path / "study.yaml").write_text(CONFIG.format(home=tmp_path))

    def workers(config: StudyConfig) -> Any:
        return threads(TrainingBody(config.resources.cpus))

    study = run_study(read_config(StudyConfig, tmp_path / "study.yaml"), workers=workers)
    run_study(read_study_config(study.path, ["trials=3"]), workers=workers)
    trials = [trial for trial in StudyDirectory(study.path).trials().values() if trial.result() is not None]
    assert len(trials) >= 2 + 3
    for trial in trials:
        result, proposal = trial.result(), trial.proposal()
        assert result is not None and proposal is not None and "missed" not in proposal
        if result.outcome is not Outcome.DUPLICATE:
            assert result.outcome is Outcome.COMPLETE
            assert result.values["parameters"] == pytest.approx(6_000, rel=0.02)
            assert result.values["state_bytes"] == pytest.approx(1_600, rel=0.02)
            assert proposal["model"]["width"] != 16


def test_a_trial_alone_refuses_a_budget_that_nothing_solves(tmp_path: Path) -> None:
    text = "rule: q_delta\ntasks: {mqar: {tokens: 128}}\nbudget: {parameters: 6_000}\n"
    (tmp_path / "trial.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_trial(tmp_path / "trial.yaml")
    assert str(error.value) == (
        "a trial has the sizes that are written; got budget.parameters, for which only a study solves them: "
        "leave it out"
    )
