"""From a search to its finals: who enters, on which seeds, what is concluded, and what a page says of it."""

import json
import re
import shutil
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from archsearch.cli import main
from archsearch.errors import ArchsearchError, ConfigError, StudyError
from archsearch.studies import commands, reading
from archsearch.studies.design.config import StudyConfig, read_study_config
from archsearch.studies.design.entrants import Role, Seeds
from archsearch.studies.engine.run import run_study
from archsearch.studies.evidence.aa import Setting
from archsearch.studies.evidence.comparison import Word
from archsearch.studies.evidence.finals import aa_config, finals_config
from archsearch.studies.evidence.pool import pool_of, read_pool, write_figures
from archsearch.studies.evidence.rows import read_evidence
from archsearch.studies.evidence.status import read_status
from archsearch.studies.evidence.winner import find_winner
from archsearch.studies.export import find_trained
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.lock import driver_lock
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.report.caveats import KEPT_AA, aa_beside
from archsearch.studies.report.study_page import write_report
from archsearch.studies.training.configuration import read_config

CONFIG = """
space: delta_family
directory: {home}/study
tasks:
  text: {{corpus: {home}/text, length: 16, tokens: 256}}
trials: 2
finalists: 1
learning_rates: [0.002, 0.008]
baselines: [gated_delta_net]
model: {{width: 16, heads: 1, layers: 1, mlp_ratio: 0}}
training: {{batch_tokens: 64}}
evaluations: 1
rungs: {{count: 1, free_pass_every: 1}}
"""


@pytest.fixture(scope="module")
def workers(request: pytest.FixtureRequest) -> Any:
    from archsearch.studies.workers.body import TrainingBody

    threads = request.getfixturevalue("thread_executor")
    return lambda config: threads(TrainingBody(config.resources.cpus))


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory, workers: Any) -> StudyDirectory:
    home = tmp_path_factory.mktemp("finals")
    (home / "text").mkdir()
    for i in range(9):
        (home / "text" / f"{i}.txt").write_text(f"the {i}th state forgets and the {i}th key remembers\n" * 6)
    (home / "study.yaml").write_text(CONFIG.format(home=home))
    return run_study(home / "study.yaml", workers=workers)


@pytest.fixture(scope="module")
def finals(search: StudyDirectory, workers: Any) -> StudyDirectory:
    return run_study(finals_config(search.path), workers=workers)


def test_every_baseline_and_the_best_enter_at_their_best_rate(search: StudyDirectory) -> None:
    evidence = read_evidence(search)
    entrants = finals_config(search.path).entrants
    assert [entrant.role for entrant in entrants.values()] == [Role.BASELINE, Role.FINALIST, Role.FREE_PASS]
    for entrant in entrants.values():
        assert entrant.trial is not None
        row = next(row for row in evidence.rows if row.number == entrant.trial)
        same = [r for r in evidence.rows if r.structure == row.structure and r.outcome is Outcome.COMPLETE]
        assert len(same) == 2 and row.values["bits_per_byte"] == min(r.values["bits_per_byte"] for r in same)
        assert entrant.choices == row.choices and entrant.scores == row.values


def test_all_entrants_meet_the_same_seeds_which_the_search_never_used(finals: StudyDirectory) -> None:
    evidence = read_evidence(finals)
    assert evidence.plan["fixed"]["seeds"] == list(Seeds(0, 6).fresh) == [1001, 1002, 1003, 1004, 1005, 1006]
    for name in evidence.entrants:
        assert [row.seed for row in evidence.rows if row.entrant == name] == evidence.plan["fixed"]["seeds"]
    values = [row.values["bits_per_byte"] for row in evidence.rows]
    assert len(set(values)) == len(values)
    assert read_status(finals).ended == read_status(finals).wanted == 18


def test_finals_read_test_data_and_keep_the_cost_of_each_document(finals: StudyDirectory) -> None:
    config = read_study_config(finals.path)
    task = config.tasks.build()["text"]
    from archsearch.studies.tasks.task import Part

    names = [document.name for document in task.documents(Part.TEST)]  # pyright: ignore[reportAttributeAccessIssue]
    for row in read_evidence(finals).rows:
        documents = row.details["documents"]["text"]
        assert [name for name, _, _ in documents] == names
        total = sum(bits for _, _, bits in documents) / sum(size for _, size, _ in documents)
        assert total == pytest.approx(row.values["bits_per_byte"])


def test_a_seed_gives_the_same_value_again(finals: StudyDirectory, workers: Any, tmp_path: Path) -> None:
    config = read_study_config(finals.path)
    name = next(iter(config.entrants))
    one = replace(config, directory=tmp_path / "one", entrants={name: config.entrants[name]}, seeds=Seeds(0, 2))
    again = read_evidence(run_study(one, workers=workers)).rows[0]
    first = next(row for row in read_evidence(finals).rows if row.entrant == name and row.seed == 1001)
    assert again.values == first.values


def test_a_trial_of_an_entrant_is_no_baseline_and_its_card_shows_those_of_its_seed(finals: StudyDirectory) -> None:
    evidence = read_evidence(finals)
    assert {row.origin for row in evidence.rows} == {f"entrant:{row.entrant}, seed {row.seed}" for row in evidence.rows}
    assert not any(row.is_baseline for row in evidence.rows)
    row = next(row for row in evidence.rows if row.entrant != "gated_delta_net" and row.seed == 1002)
    results = find_trained(finals.trial(row.number).path).origin.results
    assert [result["variant"] for result in results] == [row.name, "gated_delta_net, seed 1002"]


def test_finals_of_a_search_with_trials_to_come_say_how_many_and_go_on_if_asked(
    search: StudyDirectory, tmp_path: Path
) -> None:
    shutil.copytree(search.path, tmp_path / "short", ignore=shutil.ignore_patterns("finals", "aa"))
    path = tmp_path / "short/config.yaml"
    path.write_text(path.read_text().replace("trials: 2\n", "trials: 20\n"))
    with pytest.raises(StudyError) as error:
        finals_config(tmp_path / "short")
    place = tmp_path / "short"
    assert str(error.value) == (
        f"finals need a finished search; 6 of the 42 trials of {place} have ended: go on with "
        f"archsearch study resume {place}, or take it as it is: archsearch study finals {place} trials=2"
    )
    assert finals_config(tmp_path / "short", ["trials=2"]).entrants == finals_config(search.path).entrants
    StudyDirectory(place).write_spent(3)
    assert finals_config(place).entrants, "a spent space has no more trials"
    found = read_status(StudyDirectory(place))
    assert (found.ended, found.wanted, found.spent) == (6, 6, True)


def test_finals_are_gone_on_with_and_never_begun_twice(search: StudyDirectory, finals: StudyDirectory) -> None:
    before = {path: path.stat().st_mtime_ns for path in finals.path.glob("trials/*/*")}
    config = finals_config(search.path)
    assert config == read_study_config(finals.path)
    run_study(config, workers=lambda config: Idle())
    assert {path: path.stat().st_mtime_ns for path in finals.path.glob("trials/*/*")} == before
    with pytest.raises(StudyError, match="was begun with seeds"):
        run_study(finals_config(search.path, ["seeds.finals=7"]), workers=lambda config: Idle())


def test_finals_of_a_search_that_went_on_are_told_from_new_ones(
    search: StudyDirectory, finals: StudyDirectory, tmp_path: Path
) -> None:
    kept = shutil.copytree(search.path, tmp_path / "search") / "finals" / "config.yaml"
    entrants = finals_config(search.path).entrants.values()
    finalist = next(entrant for entrant in entrants if entrant.role is Role.FINALIST)
    text = kept.read_text(encoding="utf-8")
    kept.write_text(text.replace(f"trial: {finalist.trial}\n", "trial: 99\n"), encoding="utf-8")
    with pytest.raises(StudyError, match=r"has gone on since, and .* is not among those in .*: move that"):
        finals_config(tmp_path / "search")


def test_interrupted_finals_end_with_the_same_values(
    search: StudyDirectory, finals: StudyDirectory, workers: Any, tmp_path: Path
) -> None:
    config = replace(read_study_config(finals.path), directory=tmp_path / "finals")

    def interrupted(config: StudyConfig) -> Any:
        executor = workers(config)
        begin = executor.start

        def start(assignment: Any) -> None:
            if assignment.number == 4:
                raise KeyboardInterrupt
            begin(assignment)

        executor.start = start
        return executor

    with pytest.raises(KeyboardInterrupt):
        run_study(config, workers=interrupted)
    assert len([row for row in read_evidence(StudyDirectory(config.directory)).rows if row.outcome]) == 4
    resumed = read_evidence(run_study(config, workers=workers))
    assert [(row.name, row.values) for row in resumed.rows] == [
        (row.name, row.values) for row in read_evidence(finals).rows
    ]


class Idle:
    """Nothing is left to train."""

    slots = 1

    def start(self, assignment: Any) -> None:
        raise AssertionError("nothing is left to train")

    def departures(self, timeout: float) -> list[Any]:
        return []

    def kill(self, number: int) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing runs."""


def test_the_page_of_finals_leads_with_verdicts_and_repeats_its_bytes(
    search: StudyDirectory, finals: StudyDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    for study, beginning in ((finals, "Verdicts against"), (search, "Verdicts against")):
        page = write_report(study).read_text(encoding="utf-8")
        assert page.index(f"<h2>{beginning}") < page.index("<h2>", page.index("<h2>") + 1)
        assert "A/A: gated_delta_net against itself" in page and "<h2>Cost</h2>" in page
        assert page.index("It is of a small setting on a CPU; one of this setting: archsearch study aa") < page.index(
            "<td"
        )
        assert page.index("A/A, bits per byte: false winners in") > page.index("</svg>"), (
            "details stand behind verdicts"
        )
        assert not re.findall(r"(?:src|href)=|url\(|https?:|@import|<script", page)
        files = {path: path.read_bytes() for path in study.report.iterdir()}
        write_report(study)
        assert {path: path.read_bytes() for path in study.report.iterdir()} == files
    rows = json.loads((finals.report / "verdicts_bits_per_byte.json").read_text())
    assert {row["verdict"] for row in rows} <= {"baseline", None, *(word.value for word in Word)}
    assert all(row["reason"] for row in rows if row["role"] not in ("baseline", "reference"))
    assert [row["entrant"] for row in rows if row["role"] == "reference"][-1] == "byte n-gram, order 4"
    assert "<h2>Learning rates</h2>" in (search.report / "index.html").read_text(encoding="utf-8")


def test_the_verdicts_are_printed(finals: StudyDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    reading.best(str(finals.path), json=False)
    printed = capsys.readouterr().out
    assert "bits per byte against gated_delta_net, paired by seed" in printed and "baseline" in printed
    assert "byte n-gram, order 4" in printed and "A/A: gated_delta_net against itself" in printed
    reading.best(str(finals.path), json=True)
    rows = json.loads(capsys.readouterr().out)["bits_per_byte"]
    assert [row["seeds"] for row in rows] == [6, 6, 6, None, None]


def test_finals_that_have_ended_say_who_won_without_their_data(
    search: StudyDirectory, finals: StudyDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert finals.exists()
    home = shutil.copytree(search.path, tmp_path / "search")
    config = home / "finals" / "config.yaml"
    config.write_text(config.read_text().replace(f"{search.path.parent}/text", f"{tmp_path}/gone"))
    commands.finals(str(home), [])
    assert "bits per byte against gated_delta_net, paired by seed" in capsys.readouterr().out
    with pytest.raises(ArchsearchError, match="gone"):
        commands.finals(str(home), ["resources.concurrent=1"])
    (home / "finals/trials/00004/result.json").unlink()
    with pytest.raises(ArchsearchError, match="gone"):
        commands.finals(str(home), [])


def test_finals_stand_for_their_search_by_a_trial_that_is_not_the_luckiest(
    search: StudyDirectory, finals: StudyDirectory
) -> None:
    taken = find_trained(search.path)
    assert taken.trial.path.parent.parent == finals.path and taken.why == find_trained(finals.path).why
    evidence = read_evidence(finals)
    row = next(row for row in evidence.rows if row.number == int(taken.trial.path.name))
    values = sorted(each.values["bits_per_byte"] for each in evidence.rows if each.entrant == row.entrant)
    assert row.values["bits_per_byte"] == values[3], "four of six, never the best"
    assert f"{row.entrant} (" in taken.why and f"of its seeds {row.seed}, the one in the middle" in taken.why
    assert taken.origin.trial["chosen"] == taken.why
    named = find_trained(search.trial(0).path)
    assert named.trial.path == search.trial(0).path and named.why == "", "whoever names a trial gets it"


def test_unfinished_finals_do_not_choose(search: StudyDirectory, finals: StudyDirectory, tmp_path: Path) -> None:
    home = StudyDirectory(shutil.copytree(search.path, tmp_path / "search"))
    (home.path / "finals/trials/00004/result.json").unlink()
    winner, number = find_winner(home), read_evidence(search).winner
    assert winner is not None and number is not None
    assert winner.row == number and winner.why.startswith("Winner of the search, on one seed: trial ")
    assert winner.why.endswith("(Finals of this search: 17 of 18 trials ended)")


def test_a_search_says_how_far_its_finals_are(
    search: StudyDirectory, finals: StudyDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reading.best(str(search.path), json=False)
    said = capsys.readouterr().out
    assert "inner of the finals on 6 fresh seeds" in said and f"Next: archsearch study best {finals.path}" in said
    home = shutil.copytree(search.path, tmp_path / "search")
    (home / "finals/trials/00004/result.json").unlink()
    reading.best(str(home), json=False)
    said = capsys.readouterr().out
    assert f"17 of 18 trials ended\nNext: archsearch study finals {home}\n" in said


def test_a_finished_search_says_what_to_run_next(
    search: StudyDirectory,
    finals: StudyDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(commands, "export", lambda *given, **options: None)
    alone = StudyDirectory(_copied(search, tmp_path / "alone"))
    for study, words in (
        (alone, f"who won: archsearch study finals {alone.path}"),
        (search, f". Next: archsearch study best {finals.path}"),
    ):
        monkeypatch.setattr(commands, "run_study", lambda config, study=study, **options: study)
        commands.resume(str(study.path), [])
        assert words in capsys.readouterr().out


def test_an_a_a_study_of_a_search_trains_its_baseline_alone(search: StudyDirectory) -> None:
    config = aa_config(search.path)
    assert (list(config.entrants), config.seeds.finals) == (["gated_delta_net"], 60)
    assert config.directory == search.path / "aa"


def test_the_a_a_study_of_the_search_comes_before_the_one_kept(finals: StudyDirectory, tmp_path: Path) -> None:
    import shutil

    home = tmp_path / "study"
    shutil.copytree(finals.path, home / "finals", ignore=shutil.ignore_patterns("report"))
    (home / "aa").mkdir()
    figures = json.loads(KEPT_AA.read_text(encoding="utf-8")) | {"rule": "kda", "pool": 61}
    (home / "aa" / "aa.json").write_text(json.dumps(figures), encoding="utf-8")
    for place in (home, home / "finals"):
        (first, *_) = aa_beside(place)
        assert "A/A: kda against itself" in first and "drawn from 61 trained seeds" in first


def test_a_pool_is_kept_and_read_back(finals: StudyDirectory, tmp_path: Path) -> None:
    evidence = read_evidence(finals)
    name = next(iter(evidence.entrants))
    alone = replace(evidence, plan={**evidence.plan, "entrants": {name: evidence.entrants[name]}})
    pool = pool_of(alone)
    records_of = {"bits_per_byte": pool.objectives["bits_per_byte"]}
    from archsearch.studies.evidence.aa import simulate

    drawn = simulate(
        {k: replace(v, values=[*v.values] * 4, bits=None) for k, v in records_of.items()}, Setting(studies=2)
    )
    write_figures(tmp_path, pool, drawn)
    again = read_pool(tmp_path / "seeds.json")
    assert again.record() == pool.record()
    assert json.loads((tmp_path / "aa.json").read_text())["objectives"]["bits_per_byte"]["comparisons"] == 6
    with pytest.raises(StudyError, match="an A/A study trains one entrant on many seeds; this one has 3"):
        pool_of(evidence)


@pytest.mark.parametrize(
    ("overrides", "kind", "message"),
    [
        (["finalists=0"], ConfigError, "finalists must be >= 1; got 0"),
        (["seeds.finals=0"], ConfigError, "seeds.finals must be in 2 .. 999, for one seed has no interval; got 0"),
        (["ties={recall: -1}"], ConfigError, "ties.recall must be >= 0; got -1"),
        (["ties={recal: 0.01}"], ConfigError, "ties.recal is of no objective; the objectives are bits_per_byte"),
        (["against=kda"], ConfigError, "against must be one of gated_delta_net; got 'kda'"),
        (["entrants={kda: {}}"], ConfigError, "trials must be 0 beside entrants"),
        (["learning_rates=[0.1, 0.1]"], ConfigError, "learning_rates must differ; got 0.1 twice"),
        (
            ["trials=0", "entrants={gated_delta_net: {}, gdn: {}}"],
            ConfigError,
            "entrants must be different variants; gated_delta_net and gdn are one: leave one out",
        ),
    ],
)
def test_a_bad_question_is_refused(
    search: StudyDirectory, tmp_path: Path, overrides: list[str], kind: type[ArchsearchError], message: str
) -> None:
    with pytest.raises(kind) as error:
        run_study(
            read_config(StudyConfig, search.path.parent / "study.yaml", [f"directory={tmp_path}/new", *overrides]),
            workers=lambda config: Idle(),
        )
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "new").exists()


EDITS = [
    ("study.json", "config.resources", 5),
    ("study.json", "config.resources.gpus", "many"),
    ("study.json", "config.resources.concurrent", [1]),
    ("study.json", "config.sampler", "tpe"),
    ("study.json", "config.finalists", None),
    ("study.json", "fixed.rungs", 5),
    ("study.json", "fixed.rungs.eta", "four"),
    ("study.json", "fixed.seed", "none"),
    ("study.json", "tasks.text.tokens", "many"),
    ("study.json", "baselines.gated_delta_net", ["scalar"]),
    ("study.json", "versions.torch", {"cpu": 1}),
    ("trials/00001/trial.json", "budget.tolerance", "1%"),
    ("trials/00001/trial.json", "budget.parameters", [1]),
    ("trials/00001/trial.json", "training.learning_rate", "fast"),
    ("trials/00001/trial.json", "choices.rule/decay", ["scalar"]),
    ("trials/00001/trial.json", "model.width", float("nan")),
    ("finals/study.json", "fixed.ties", 5),
    ("finals/study.json", "fixed.ties", {"bits_per_byte": "small"}),
    ("finals/study.json", "fixed.seeds", []),
    ("finals/study.json", "entrants.gated_delta_net", "baseline"),
]
"""Of a file the field at a dotted path, and what somebody wrote there."""


def edited(search: StudyDirectory, home: Path, file: str, place: str, value: object) -> Path:
    """A copy of the search and its finals with one such edit."""
    copy = home / "study"
    shutil.copytree(search.path, copy)
    record = json.loads((copy / file).read_text())
    *path, last = place.split(".")
    reduce(dict.__getitem__, path, record)[last] = value
    (copy / file).write_text(json.dumps(record))
    return copy


@pytest.mark.parametrize(("file", "place", "value"), EDITS)
def test_a_value_edited_by_hand_is_named_and_nothing_is_written(
    search: StudyDirectory,
    finals: StudyDirectory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    place: str,
    value: object,
) -> None:
    copy = edited(search, tmp_path, file, place, value)
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file() and each.name != "driver.lock"}
    for command in ("report", "resume"):
        with pytest.raises(SystemExit) as left:
            main(["study", command, str(copy / "finals" if file.startswith("finals") else copy)])
        said = capsys.readouterr()
        assert (left.value.code, said.out, said.err.count("\n")) == (2, "", 1)
        assert f"{copy / file} must hold JSON objects; one lacks what was written ({place}" in said.err
    now = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file() and each.name != "driver.lock"}
    assert now == before


@pytest.mark.parametrize(
    ("file", "place", "value", "said"),
    [
        ("trials/00001/trial.json", "choices.rule/decay", 5, "choices.rule/decay 5"),
        ("finals/study.json", "entrants.gated_delta_net.role", "king", "'king' is not a valid Role"),
        ("finals/study.json", "fixed.against", "nobody", "no entrants.nobody"),
    ],
)
def test_a_value_that_fits_no_other_is_named(
    search: StudyDirectory, finals: StudyDirectory, tmp_path: Path, file: str, place: str, value: object, said: str
) -> None:
    copy = edited(search, tmp_path, file, place, value)
    with pytest.raises(StudyError, match=r"must hold JSON objects; one lacks what was written \(") as error:
        read_evidence(StudyDirectory(copy / "finals" if file.startswith("finals") else copy))
    assert f"({said})" in str(error.value)


@pytest.mark.parametrize(
    ("file", "gone"), [("study.json", "config"), ("study.json", "tasks"), ("trials/00001/trial.json", "training")]
)
def test_an_export_of_a_trial_that_lost_a_part_of_its_question_says_which(
    search: StudyDirectory, tmp_path: Path, file: str, gone: str
) -> None:
    copy = tmp_path / "study"
    shutil.copytree(search.path, copy, ignore=shutil.ignore_patterns("finals"))
    record = json.loads((copy / file).read_text())
    del record[gone]
    (copy / file).write_text(json.dumps(record))
    with pytest.raises(StudyError, match=rf"{file} must hold JSON objects; one lacks what was written \(.*{gone}"):
        find_trained(copy / "trials" / "00001")


def test_a_driver_lives_while_it_holds_the_lock_whoever_has_its_process_number_now(
    search: StudyDirectory, tmp_path: Path
) -> None:
    import shutil

    copy = StudyDirectory(tmp_path / "copy")
    shutil.copytree(search.path, copy.path, ignore=shutil.ignore_patterns("finals"))
    with driver_lock(copy.lock):
        assert str(read_status(copy).driver).startswith("process ")
    assert copy.lock.read_text() and read_status(copy).driver is None


def test_the_next_command_can_be_copied_where_a_path_has_spaces(
    search: StudyDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    copy = tmp_path / "two words"
    shutil.copytree(search.path, copy, ignore=shutil.ignore_patterns("finals"))
    commands.stop(str(copy), now=False)
    assert f"archsearch study resume '{copy}'" in capsys.readouterr().out


def test_finals_need_a_finished_search_with_its_baseline(
    search: StudyDirectory, finals: StudyDirectory, tmp_path: Path
) -> None:
    import shutil

    with pytest.raises(StudyError, match="is already a study of entrants"):
        finals_config(finals.path)
    shutil.copytree(search.path, tmp_path / "cut", ignore=shutil.ignore_patterns("finals"))
    with (
        driver_lock(tmp_path / "cut" / "driver.lock"),
        pytest.raises(StudyError, match=r"a driver still runs in .*cut"),
    ):
        finals_config(tmp_path / "cut")
    (tmp_path / "cut" / "trials" / "00002" / "result.json").unlink()
    with pytest.raises(StudyError, match=r"finals need a finished search; trial 2 of .* has no end"):
        finals_config(tmp_path / "cut")
    with pytest.raises(StudyError, match=r"finals need the baselines of .*; it has none"):
        finals_config(_copied(search, tmp_path / "bare"), ["baselines=[]"])


def _copied(search: StudyDirectory, target: Path) -> Path:
    shutil.copytree(search.path, target, ignore=shutil.ignore_patterns("finals"))
    return target
