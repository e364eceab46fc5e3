"""A whole small study on real tasks: run, resumed, read, reported, exported; and the questions that are refused."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import archsearch
from archsearch.cli import main
from archsearch.errors import ArchsearchError, ConfigError, HoleError, SpaceError, StudyError
from archsearch.studies import commands, reading
from archsearch.studies.design.config import StudyConfig, read_study_config
from archsearch.studies.engine.run import run_study
from archsearch.studies.evidence.naming import choice_words
from archsearch.studies.evidence.rows import read_evidence
from archsearch.studies.evidence.status import read_status
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.training.configuration import read_config

Captured = pytest.CaptureFixture[str]

CONFIG = """
space: delta_family
directory: {home}/study
tasks:
  mqar: {{length: 16, pairs: 2, vocabulary: 16, evaluation: 8, tokens: 256}}
  text: {{corpus: {home}/text, length: 16, tokens: 256}}
trials: 3
baselines: [gated_delta_net, eda]
model: {{width: 16, heads: 1, layers: 1, mlp_ratio: 0}}
training: {{batch_tokens: 64}}
evaluations: 2
rungs: {{count: 2, eta: 2, min_peers: 2, free_pass_every: 0}}
sampler: {{startup: 2}}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "text").mkdir()
    for i in range(6):
        (home / "text" / f"{i}.txt").write_text(f"the {i}th state forgets and the {i}th key remembers\n" * 12)
    (home / "study.yaml").write_text(CONFIG.format(home=home))
    return home


@pytest.fixture(scope="module")
def workers(request: pytest.FixtureRequest) -> Any:
    from archsearch.studies.workers.body import TrainingBody

    threads = request.getfixturevalue("thread_executor")
    return lambda config: threads(TrainingBody(config.resources.cpus))


@pytest.fixture(scope="module")
def study(home: Path, workers: Any) -> StudyDirectory:
    return run_study(home / "study.yaml", workers=workers)


def test_every_trial_of_a_real_study_ends_with_its_counts(study: StudyDirectory) -> None:
    evidence = read_evidence(study)
    assert [row.name for row in evidence.rows[:2]] == ["gated_delta_net", "eda"]
    assert len([row for row in evidence.rows if row.outcome is not Outcome.DUPLICATE]) == 5
    assert {row.outcome for row in evidence.rows} <= {Outcome.COMPLETE, Outcome.STOPPED, Outcome.DUPLICATE}
    first = evidence.rows[0]
    assert first.rule_hash == archsearch.rules["gated_delta_net"].hash
    assert first.details["state_bytes"] > 0 and set(first.values) >= {"recall", "bits_per_byte", "parameters"}


def test_the_winner_leads_the_ranking_and_no_one_beats_it_in_everything(study: StudyDirectory) -> None:
    evidence = read_evidence(study)
    assert evidence.winner is not None and evidence.ranking[0] == (1, evidence.winner)
    for _, row in evidence.ranking:
        worse = row.values["recall"] <= evidence.winner.values["recall"]
        assert worse or row.values["bits_per_byte"] >= evidence.winner.values["bits_per_byte"]


def test_chance_and_the_n_gram_stand_beside_the_scores(study: StudyDirectory) -> None:
    names = {(objective, name) for objective, name, _ in read_evidence(study).references}
    assert ("bits_per_byte", "byte n-gram, order 1") in names
    assert any(objective == "recall" and "chance" in name for objective, name in names)


def test_status_reads_files_only(study: StudyDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    import optuna

    monkeypatch.setattr(optuna, "load_study", None)
    monkeypatch.setattr(optuna, "create_study", None)
    before = {path: path.stat().st_mtime_ns for path in study.path.rglob("*")}
    status = read_status(study)
    assert (status.wanted, status.ended) == (5, 5) and sum(status.outcomes.values()) >= 5
    assert {path: path.stat().st_mtime_ns for path in study.path.rglob("*")} == before


def test_a_finished_study_is_taken_up_without_training(study: StudyDirectory, home: Path) -> None:
    before = (study.path / "optuna.journal").read_bytes()

    class Refuses:
        slots = 1

        def start(self, assignment: Any) -> None:
            raise AssertionError("nothing is left to train")

        def departures(self, timeout: float) -> list[Any]:
            return []

        def kill(self, number: int) -> None:
            """Nothing runs."""

        def close(self) -> None:
            """Nothing runs."""

    run_study(read_study_config(study.path), workers=lambda config: Refuses())
    after = (study.path / "optuna.journal").read_bytes()
    assert after[: len(before)] == before
    assert len(StudyDirectory(study.path).trials()) == len(study.trials())


def test_the_report_is_one_page_that_needs_no_network(
    study: StudyDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    reading.report(str(study.path))
    page = (study.path / "report" / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r"(?:src|href)=|url\(|https?:|@import|<script", page)
    for words in ("gated_delta_net", "byte n-gram, order 1", "The winning rule", "Learning curves", "Rungs", "Sₜ₋₁"):
        assert words in page
    ranking = json.loads((study.path / "report" / "ranking.json").read_text())
    assert ranking[0]["rank"] == 1 and {"recall", "bits_per_byte", "parameters"} <= set(ranking[0])
    csv = (study.path / "report" / "ranking.csv").read_text().splitlines()
    assert csv[0].startswith("rank,trial,name") and len(csv) == len(ranking) + 1


def test_page_and_tables_of_a_study_are_kept_apart_from_it(study: StudyDirectory, tmp_path: Path) -> None:
    reading.report(str(study.path), str(tmp_path / "kept"))
    names = {path.name for path in (tmp_path / "kept").iterdir()}
    assert {"report.html", "tables.md", "ranking.csv", "cost.csv"} <= names
    page, tables = ((tmp_path / "kept" / name).read_text(encoding="utf-8") for name in ("report.html", "tables.md"))
    assert "archsearch study run runs/study" in page
    assert "| gated_delta_net | baseline |" in tables and "## Cost" in tables
    before = sorted(study.path.rglob("*"))
    for place in (study.path, study.path / "finals"):
        with pytest.raises(StudyError, match="must lie outside of it"):
            reading.report(str(study.path), str(place))
    assert sorted(study.path.rglob("*")) == before


def test_a_study_whose_time_is_over_says_how_it_goes_on(
    study: StudyDirectory, tmp_path: Path, workers: Any, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("archsearch.studies.engine.run.local_workers", workers)
    copy = tmp_path / "study"
    shutil.copytree(study.path, copy)
    commands.resume(str(copy), ["trials=4", "resources.time_limit=1e-9", "resources.workers=local"])
    printed = capsys.readouterr().out
    assert f"after 5 of 6 trials. Go on with: archsearch study resume {copy}" in printed
    assert "Exported" not in printed and not (copy / "winner").exists()
    commands.resume(str(copy), ["trials=3", "resources.workers=local"])
    assert "Exported to" in capsys.readouterr().out
    for place in (copy / "trials").glob("*/checkpoint"):
        shutil.rmtree(place)
    commands.resume(str(copy), ["trials=3", "resources.workers=local"])
    assert "Not exported: the checkpoint of trial" in capsys.readouterr().out


def test_the_winner_and_any_trial_of_a_study_can_be_probed(study: StudyDirectory, tmp_path: Path) -> None:
    winner = read_evidence(study).winner
    assert winner is not None
    for source, number in ((study.path, winner.number), (study.trial(1).path, 1)):
        commands.probe(str(source), None, str(tmp_path / source.name))
        probed = json.loads((tmp_path / source.name / "probe.json").read_text(encoding="utf-8"))
        assert probed["rule_hash"] == (study.trial(number).proposal() or {})["rule_hash"]
        assert probed["text"].startswith("held-out text of its task")


def test_the_ranking_is_printed_with_the_winner_as_an_equation(
    study: StudyDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    reading.best(str(study.path), json=False)
    printed = capsys.readouterr().out
    assert "gated_delta_net" in printed and "Winner: trial" in printed and "Sₜ₋₁" in printed
    reading.best(str(study.path), json=True)
    assert json.loads(capsys.readouterr().out)[0]["rank"] == 1
    reading.pareto(str(study.path), json=True)
    front = json.loads(capsys.readouterr().out)
    assert front and {"trial", "name", "recall", "recall_low", "bits_per_byte"} <= set(front[0])
    winner = read_evidence(study).winner
    assert winner is not None and winner.number in [place["trial"] for place in front]
    reading.pareto(str(study.path), json=False)
    assert "recall" in capsys.readouterr().out
    commands.stop(str(study.path), now=False)
    assert capsys.readouterr().out.startswith(f"No driver runs in {study.path}. Go on with: archsearch study resume")
    reading.status(str(study.path), json=False, once=True)
    assert "5 of 5 trials ended; driver: " in capsys.readouterr().out
    reading.status(str(study.path), json=True)
    assert json.loads(capsys.readouterr().out)["ended"] == 5


def test_a_moved_study_goes_on_where_it_lies_now(study: StudyDirectory, home: Path, workers: Any) -> None:
    shutil.copytree(study.path, home / "moved")
    config = read_study_config(home / "moved", ["trials=4"])
    run_study(config, workers=workers)
    assert read_status(StudyDirectory(home / "moved")).ended == 6


@pytest.mark.parametrize(
    ("lost", "command", "message"),
    [
        ("trials", "status", "study/trials is gone: restore it from a copy of the study"),
        ("trials", "best", "study/trials is gone: restore it"),
        ("trials", "report", "study/trials is gone: restore it"),
        ("trials", "pareto", "study/trials is gone: restore it"),
        ("trials/00001", "best", "study/trials/00001/trial.json is gone: restore it"),
        ("config.yaml", "status", "study/config.yaml is gone: restore it from a copy of the study, or go on with"),
        ("config.yaml", "resume", "study/config.yaml is gone: restore it from a copy of the study, or go on with"),
    ],
)
def test_a_study_that_lost_a_part_says_which(
    study: StudyDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: str, command: str, message: str
) -> None:
    shutil.copytree(study.path, tmp_path / "study")
    path = tmp_path / "study" / lost
    path.unlink() if path.is_file() else shutil.rmtree(path)
    before = sorted(str(each) for each in tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as left:
        main(["study", command, str(tmp_path / "study")])
    said = capsys.readouterr()
    assert left.value.code == 2 and message in said.err and said.err.count("\n") == 1 and not said.out
    assert sorted(str(each) for each in tmp_path.rglob("*")) == before


def test_nothing_is_said_to_begin_before_the_question_is_accepted(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/file").write_text("mine")
    with pytest.raises(SystemExit) as left:
        main(["study", "run", str(home / "study.yaml"), f"directory={tmp_path}/own", "resources.workers=local"])
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (2, "")
    assert said.err.endswith(f"choose another directory (in {home}/study.yaml)\n")


def test_where_a_study_lies_is_no_option_of_it(study: StudyDirectory) -> None:
    with pytest.raises(ConfigError, match=r"directory must be left out: the study lies in "):
        read_study_config(study.path, ["directory=elsewhere"])


def test_choices_are_told_in_words() -> None:
    assert (
        choice_words({"rule/decay": "scalar", "rule/erase": "none", "training/learning_rate": 1e-3}) == "scalar decay"
    )
    assert choice_words({"rule/decay": "none"}) == "plain"
    assert choice_words({"rule/residual": "fixed", "rule/residual=fixed/lam": 0.314}) == "fixed residual, 0.31 lam"


@pytest.mark.parametrize(
    ("overrides", "kind", "message"),
    [
        (["trials=many"], ConfigError, "trials must be an integer; got 'many'"),
        (["trails=3"], ConfigError, "unknown key trails in"),
        (["space=delta_famly"], SpaceError, "unknown space 'delta_famly'; did you mean delta_family?"),
        (["baselines=[gla]"], SpaceError, "no choice of its holes makes gla"),
        (
            ["objectives={recal: maximize}"],
            ConfigError,
            "objectives.recal is measured by no task; did you mean recall?",
        ),
        (["objectives={recall: minimize}"], ConfigError, "objectives.recall must be maximize"),
        (["training.learning_rate=-1"], ConfigError, "training.learning_rate must be > 0; got -1"),
        (["training.learning_rat=1"], ConfigError, "unknown key learning_rat in training; did you mean learning_rate?"),
        (["rungs.eta=1"], ConfigError, "rungs.eta must be >= 2; got 1"),
        (
            ["resources.gpus=0.3"],
            ConfigError,
            "resources.gpus must be a whole number or a fraction 1/n, n <= 128; got 0.3",
        ),
        (
            ["model.heads=3"],
            ConfigError,
            "no model can be built for gated_delta_net: width must be a multiple of heads",
        ),
        (["model.heads=3", "baselines=[]"], ConfigError, "no model can be built for the plainest point: width must be"),
        (["backend=cuda"], ConfigError, "backend must be one of"),
        (
            ["storage=postgresql://me:secret@host/db"],
            ConfigError,
            "storage must be without a password, which the study's files would keep; got postgresql://me:***@host/db",
        ),
        (["storage=sqlite:////nonexistent/x.db"], StudyError, "storage must be journal or the URL of a database that"),
        (["sampler.kind=cmaes"], ConfigError, "sampler.kind cmaes takes one objective; got 2 (recall, bits_per_byte)"),
        (
            ["sampler.kind=grid"],
            ConfigError,
            "sampler.kind grid needs finitely many values; rule/residual=fixed",
        ),
        (
            ["sampler.kind=grid", "sampler.levels=1e9"],
            ConfigError,
            "sampler.levels must be in 1 .. 1,000; got 1,000,000",
        ),
        (["sampler.kind=tpa"], ConfigError, "sampler.kind must be one of"),
        (["resources={gpus: 0, processes: 100}"], ConfigError, "a batch needs a sequence for each of 100 processes"),
        (
            ["resources={gpus: 2, shard: true}", "objectives={recall: maximize, step_milliseconds: minimize}"],
            ConfigError,
            "objectives.step_milliseconds is measured on one device, which resources.shard spares; leave one of them",
        ),
        (["resources={gpus: 2, shard: true}", "graphs=true"], ConfigError, "graphs need one process a trial; leave"),
        (["resources={shard: true}"], ConfigError, "resources.shard needs a trial of several processes; got 1; raise"),
        (["resources.cpus=4096"], StudyError, "a trial needs 4096 CPUs; this machine has"),
        (["resources.gpus=4096"], StudyError, "a trial needs 4096 GPUs; this machine has"),
        (["graphs=true", "resources.gpus=0"], ConfigError, "graphs need trials with a GPU; got resources.gpus 0"),
        (["rungs.count=20"], StudyError, "20 rungs need a larger budget than 512 tokens; use fewer rungs"),
    ],
)
def test_a_bad_question_is_refused_in_one_line_and_writes_nothing(
    home: Path, tmp_path: Path, overrides: list[str], kind: type[ArchsearchError], message: str
) -> None:
    with pytest.raises(kind) as error:
        run_study(read_config(StudyConfig, home / "study.yaml", [f"directory={tmp_path}/study", *overrides]))
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "study").exists()


def test_graphs_are_refused_where_no_trial_has_a_gpu(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(StudyError, match="graphs need trials with a GPU; this machine has none; leave graphs out"):
        run_study(read_config(StudyConfig, home / "study.yaml", [f"directory={tmp_path}/study", "graphs=true"]))
    assert not (tmp_path / "study").exists()


def test_a_study_does_not_settle_among_other_files(home: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StudyError, match=r"a study needs a directory of its own; .* holds thesis\.tex"):
        run_study(read_config(StudyConfig, home / "study.yaml", [f"directory={tmp_path}"]))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_another_space_is_named_by_what_differs(study: StudyDirectory, home: Path, workers: Any) -> None:
    with pytest.raises(StudyError) as error:
        run_study(read_config(StudyConfig, home / "study.yaml", ["model.width=32"]), workers=workers)
    assert "was begun with space = " in str(error.value) and "width=16" in str(error.value)


def test_a_directory_that_is_no_study_is_refused(tmp_path: Path) -> None:
    for read in (
        lambda path: reading.status(path, json=False),
        reading.report,
        lambda path: commands.resume(path, []),
    ):
        with pytest.raises(StudyError, match=r"a study's directory holds study\.json"):
            read(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_options_given_replace_those_of_the_space(home: Path) -> None:
    config = read_config(StudyConfig, home / "study.yaml", ["training.learning_rate=0.003", "layer.conv=2"])
    space = config.load_space()
    assert "training/learning_rate" not in space.holes
    assert (space.training.learning_rate, space.layer.conv, space.model.width) == (0.003, 2, 16)
    assert space.layer.operands == replace(space.layer).operands != {}


def test_a_space_in_a_file_of_the_users_own(home: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from archsearch import Model, Rule, Space, Training, delta_write, gate, key, query, read, value\n"
        "from archsearch import log_uniform, one_of\n"
        "b = gate('beta')\n"
        "strength = one_of(b, 0.5 * b, name='strength')\n"
        "RULE = Rule('mine', delta_write(key('k'), value('v'), strength=strength), read(query('q')))\n"
        "SPACE = Space(rule=RULE, model=Model(), training=Training(learning_rate=log_uniform(1e-3, 1e-2)))\n"
    )
    config = read_config(StudyConfig, home / "study.yaml", [f"space={tmp_path}/mine.py", "baselines=[delta_net]"])
    assert list(config.load_space().holes) == ["rule/strength", "training/learning_rate"]
    with pytest.raises(HoleError, match="rule/strength"):
        archsearch.resolve(config.load_space(), {"rule/strength": "none"})
