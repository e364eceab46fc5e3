"""A variant that is proposed again meets its next seed, and what an older study trained is not trained again."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from archsearch.errors import ConfigError, StudyError
from archsearch.studies import commands
from archsearch.studies.design.config import StudyConfig, read_study_config
from archsearch.studies.design.entrants import Seeds
from archsearch.studies.engine.run import run_study
from archsearch.studies.evidence.findings import costs
from archsearch.studies.evidence.rows import read_evidence
from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.report.study_page import ranking_table, write_report
from archsearch.studies.training.configuration import read_config

STUDY = """
space: delta_family
directory: {home}/old
tasks: {{mqar: {{length: 16, pairs: 2, vocabulary: 16, evaluation: 8, tokens: 256}}}}
trials: 3
baselines: [delta_net]
model: {{width: 16, heads: 1, layers: 1, mlp_ratio: 0}}
training: {{batch_tokens: 64, learning_rate: 0.01}}
evaluations: 1
rungs: {{count: 1, free_pass_every: 0}}
"""


def test_seeds_of_repetitions_are_none_of_the_search_or_its_finals() -> None:
    seeds = Seeds(search=3, finals=6, replicates=4)
    again = [seeds.replicate(count) for count in range(1, 6)]
    assert again == [4999, 4998, 4997, None, None]
    assert not {seed for seed in again if seed is not None} & {3, *seeds.fresh}
    assert Seeds().replicate(1) is None
    with pytest.raises(ConfigError, match=r"seeds\.replicates must be in 1 \.\. 994; got 995"):
        Seeds(finals=6, replicates=995)


def proposals(path: Path) -> list[dict[str, Any]]:
    return [trial.proposal() or {} for trial in StudyDirectory(path).trials().values()]


def few(toy: ModuleType) -> Any:
    """Points of the toy with two variants only."""

    def resolve(choose: Any) -> Any:
        return toy.ToyPoint({"kind": choose("kind", toy.OneOf(("up", "down"), (1, 2))), "kind=down/rate": 0.3})

    return resolve


def run_toy(toy: ModuleType, threads: Any, path: Path, trials: int) -> None:
    options = {
        "plan": toy.plan(baselines={}),
        "resolve": few(toy),
        "replicate": Seeds(replicates=3).replicate,
    }
    toy.study(path, lambda: threads(toy.ToyBody(0.0)), trials=trials, **options)


def test_a_variant_proposed_again_meets_its_next_seed_until_it_has_met_them_all(
    toy: ModuleType, threads: Any, tmp_path: Path
) -> None:
    run_toy(toy, threads, tmp_path, 6)
    run = [p for p in proposals(tmp_path) if p["duplicate_of"] is None]
    assert Counter(p["variant_hash"] for p in run).most_common() == [(run[0]["variant_hash"], 3), (_other(run), 3)]
    for variant in {p["variant_hash"] for p in run}:
        own = [p for p in run if p["variant_hash"] == variant]
        assert [p.get("seed") for p in own] == [None, 1999, 1998]
        assert [p.get("replicate_of") for p in own[1:]] == [own[0]["number"]] * 2


def _other(run: list[dict[str, Any]]) -> str:
    return next(p["variant_hash"] for p in run if p["variant_hash"] != run[0]["variant_hash"])


def test_repetitions_are_the_same_after_an_interruption(toy: ModuleType, threads: Any, tmp_path: Path) -> None:
    for trials in (3, 6):
        run_toy(toy, threads, tmp_path / "pieces", trials)
    run_toy(toy, threads, tmp_path / "whole", 6)
    assert proposals(tmp_path / "pieces") == proposals(tmp_path / "whole")


def test_a_variant_on_several_seeds_is_ranked_by_their_mean(toy: ModuleType, threads: Any, tmp_path: Path) -> None:
    run_toy(toy, threads, tmp_path, 6)
    study = StudyDirectory(tmp_path)
    for trial in study.trials().values():
        result, seed = trial.result(), (trial.proposal() or {}).get("seed", 0)
        if result is not None and result.outcome is Outcome.COMPLETE:
            trial.write_result(replace(result, values={"loss": float(seed), "cost": 1.0}))
    judged = read_evidence(study).judged
    for row in judged:
        own = [r for r in read_evidence(study).ended(Outcome.COMPLETE) if row.number in (r.number, r.replicate_of)]
        assert row.seeds == len(own) and row.values["loss"] == pytest.approx(
            sum(r.values["loss"] for r in own) / len(own)
        )
    table = ranking_table(read_evidence(study))
    seeds = {line["trial"]: line["seeds"] for line in table.rows}
    assert all(seeds[row.number] == row.seeds for row in judged) and max(row.seeds for row in judged) > 1
    reasons = {str(line.get("reason")) for line in table.rows}
    assert any(reason.startswith("in the means of trial") for reason in reasons)


@pytest.fixture(scope="module")
def workers(request: pytest.FixtureRequest) -> Any:
    from archsearch.studies.workers.body import TrainingBody

    threads = request.getfixturevalue("thread_executor")
    return lambda config: threads(TrainingBody(config.resources.cpus))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory, workers: Any) -> StudyDirectory:
    home = tmp_path_factory.mktemp("importing")
    (home / "old.yaml").write_text(STUDY.format(home=home))
    return run_study(home / "old.yaml", workers=workers)


def asked(old: StudyDirectory, path: Path, **changes: Any) -> StudyConfig:
    config = read_config(StudyConfig, old.path.parent / "old.yaml")
    return replace(config, directory=path, imported=old.path, **changes)


class _Counting:
    """Workers that note which trials they were given."""

    def __init__(self, workers: Any) -> None:
        self.executor: Any = None
        self._workers = workers

    def __call__(self, config: StudyConfig) -> Any:
        self.executor = self._workers(config)
        return self.executor


def test_trials_of_an_older_study_count_and_are_not_trained_again(
    old: StudyDirectory, workers: Any, tmp_path: Path
) -> None:
    counting = _Counting(workers)
    study = run_study(asked(old, tmp_path / "new", trials=1, baselines=("delta_net", "kda")), workers=counting)
    evidence, before = read_evidence(study), {row.variant_hash: row for row in read_evidence(old).rows}
    taken = [row for row in evidence.rows if row.is_imported]
    assert {row.variant_hash for row in taken} == {h for h, r in before.items() if r.outcome is Outcome.COMPLETE}
    for row in taken:
        same = before[row.variant_hash]
        assert (row.values, row.tokens, row.details["imported"]) == (
            same.values,
            same.tokens,
            str(old.trial(same.number).path),
        )
        assert [m.values for m in row.curve] == [m.values for m in same.curve]
        assert study.trial(row.number).checkpoints.exists()
    started = {assignment.number for assignment in counting.executor.started}
    assert started and not started & {row.number for row in taken}
    assert evidence.rows[0].name == "delta_net" and evidence.rows[0].is_imported
    cost = {each.what: each for each in costs(evidence)}
    assert cost["an older study, which paid for them"].trials == len(taken)
    assert cost["all"].trials == len(evidence.rows) - len(taken)
    assert "imported" in write_report(study).read_text(encoding="utf-8")


def test_an_import_that_was_cut_short_is_gone_on_with(
    old: StudyDirectory, workers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(path: Path) -> None:
        if path.name == "result.json":
            raise OSError("the disk is full")

    config = asked(old, tmp_path / "new", trials=0, baselines=("delta_net",))
    monkeypatch.setattr(records, "watch", watch)
    with pytest.raises(OSError, match="the disk is full"):
        run_study(config, workers=workers)
    monkeypatch.undo()
    first = StudyDirectory(config.directory).trial(0)
    assert first.curve() and first.result() is None
    counting = _Counting(workers)
    run_study(read_study_config(config.directory), workers=counting)
    assert counting.executor.started == []
    assert read_evidence(StudyDirectory(config.directory)).rows[0].values == read_evidence(old).rows[0].values


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"evaluations": 2}, "evaluations is 1 there and 2 here"),
        ({"seeds": Seeds(search=1)}, "seed is 0 there and 1 here"),
    ],
)
def test_values_that_mean_something_else_do_not_count(
    old: StudyDirectory, workers: Any, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(StudyError, match=message):
        run_study(asked(old, tmp_path / "new", **change), workers=workers)
    assert not (tmp_path / "new").exists()


def test_a_variant_that_is_no_point_of_the_new_space_stays_behind(
    old: StudyDirectory, workers: Any, tmp_path: Path
) -> None:
    study = run_study(
        asked(old, tmp_path / "new", trials=0, model={"width": 32, "heads": 1, "layers": 1}), workers=workers
    )
    assert [row.is_imported for row in read_evidence(study).rows] == [False]


def test_a_study_that_has_begun_takes_no_import(old: StudyDirectory) -> None:
    with pytest.raises(StudyError, match="--import is for a study that begins"):
        commands.run(str(old.path), [], "elsewhere")
    assert json.loads((old.path / "study.json").read_text())["baselines"]
