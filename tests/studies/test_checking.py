"""A study checked without training: what it draws, what that costs, and what cannot be built."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from archsearch.cli import main
from archsearch.errors import ArchsearchError, ConfigError, HoleError, SpaceError
from archsearch.holes import one_of
from archsearch.mixers.models import counts
from archsearch.mixers.models.options import Model
from archsearch.spaces.delta_family import SPACE
from archsearch.spaces.options import Training
from archsearch.studies.design.config import StudyConfig, overridden
from archsearch.studies.engine.checking import StudyCheck, check_study
from archsearch.studies.engine.run import run_study
from archsearch.studies.files import records
from archsearch.studies.report.check_page import print_check
from archsearch.studies.training.configuration import read_config

CONFIG = """
space:
  rule: {{one_of: [gated_delta_net, kda]}}
  model: {{width: 32, heads: {{one_of: [1, 2]}}, layers: 1, mlp_ratio: 0}}
  training: {{learning_rate: {{log_uniform: [1e-3, 1e-2]}}, batch_tokens: 64}}
directory: {home}/study
tasks: {{mqar: {{length: 16, pairs: 2, vocabulary: 16, evaluation: 8, tokens: 256}}}}
trials: 3
baselines: [kda]
rungs: {{count: 1}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "study.yaml").write_text(CONFIG.format(home=tmp_path))
    return tmp_path / "study.yaml"


def checked(path: Path, *overrides: str, most: int = 64) -> StudyCheck:
    return check_study(read_config(StudyConfig, path, overrides), most)


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert isinstance(left.value.code, int)
    return left.value.code


def test_every_structure_is_built_and_counted_and_nothing_is_written(path: Path) -> None:
    found = checked(path)
    assert found.whole and not found.bad
    assert [point.name for point in found.points] == [
        "kda",
        "rule=gated_delta_net heads=1",
        "rule=gated_delta_net heads=2",
        "rule=kda heads=1",
        "rule=kda heads=2",
    ]
    space = read_config(StudyConfig, path).load_space()
    point = space.resolve(lambda path, hole: found.points[1].choices[path])
    assert found.points[1].costs == {
        "parameters": counts.parameters(point.rule, point.model, point.layer, 16),
        "flops_per_token": counts.flops_per_token(point.rule, point.model, point.layer, 16, 16),
        "state_bytes": counts.state_bytes(point.rule, point.model, point.layer, 16),
    }
    assert (found.tokens, found.trials, found.points[0].seconds) == (256, 3, None)
    assert [each.name for each in path.parent.iterdir()] == ["study.yaml"]


def test_of_a_large_space_points_are_drawn_the_same_each_time(path: Path) -> None:
    first, second = (checked(path, most=2) for _ in range(2))
    assert not first.whole and len(first.points) == 1 + 2
    assert [point.choices for point in first.points] == [point.choices for point in second.points]


def test_a_structure_that_cannot_be_built_is_one_line_and_exit_code_2(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = path.read_text().replace("[1, 2]}}, layers".replace("}}", "}"), "[1, 3]}, layers")
    path.write_text(text)
    assert exit_code("study", "check", str(path)) == 2
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if line.startswith("bad point: ")]
    assert lines == [
        f"bad point: rule={name} heads=3: width must be a multiple of heads; got width=32, heads=3. "
        "Change one, or set layer.head_dim"
        for name in ("gated_delta_net", "kda")
    ]
    assert "2 cannot be built" in said and f"Next: archsearch study check {path}" in said


def test_a_choice_that_makes_no_rule_is_a_bad_point(path: Path) -> None:
    steps = "{one_of: {good: read(q), bad: [read(q), read(q)]}, name: reads}"
    rule = f"{{operands: {{q: query, k: key, v: value}}, steps: ['write(k, v)', {steps}]}}"
    path.write_text(path.read_text().replace("{one_of: [gated_delta_net, kda]}", rule))
    found = checked(path, "baselines=[]")
    assert [(point.name, point.error) for point in found.bad] == [
        ("reads=bad", "rule 'rule' must read exactly once; got 2 reads. Keep one")
    ]
    assert len(found.points) == 2 + 1


def test_sizes_are_solved_and_what_cannot_be_is_one_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = checked(path, "budget={state_bytes: kda, parameters: 20_000}")
    for point in found.points:
        assert not point.missed and point.costs is not None
        assert point.costs["parameters"] == pytest.approx(20_000, rel=0.011)
        assert point.costs["state_bytes"] == pytest.approx(found.targets.numbers["state_bytes"], rel=0.011)
    assert exit_code("study", "check", str(path), "budget={state_bytes: 100}") == 2
    said = capsys.readouterr().out
    assert "no point meets the budget: change it, or the sizes that the space writes" in said
    assert "over budget: kda: budget.state_bytes asks for 100; the nearest sizes give 208 (+108.0%)" in said


def test_json_holds_every_point(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("study", "check", str(path), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["structures"], found["distinct_rules"], found["cannot_be_built"]) == (4, 2, 0)
    assert [point["name"] for point in found["points"]][:2] == ["kda", "rule=gated_delta_net heads=1"]
    assert all(point["costs"]["parameters"] > 0 for point in found["points"])


def test_seconds_are_those_of_trials_that_ran(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = checked(path).points[0].costs
    assert costs is not None
    print_check(checked(path), str(path), Console(width=120), json=False)
    assert "  seconds" not in capsys.readouterr().out, "no column without a number"
    trial = path.parent / "study" / "trials" / "00000"
    trial.mkdir(parents=True)
    records.write_json(trial.parent.parent / "study.json", {"fixed": {}})
    records.write_json(trial / "trial.json", {"rule_hash": "another"})
    records.write_json(trial / "attempt.json", {"attempt": 1})
    details = {"tokens_per_second": 128.0, "flops_per_token": costs["flops_per_token"]}
    kept = {
        "outcome": "complete",
        "attempt": 1,
        "tokens": 256,
        "values": {},
        "seconds": 2.0,
        "message": "",
        "details": details,
    }
    records.write_json(trial / "result.json", kept)
    assert checked(path).points[0].seconds == pytest.approx(2.0)
    print_check(checked(path), str(path), Console(width=120), json=False)
    assert "  seconds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "kind", "message"),
    [
        (["space=delta_famly"], SpaceError, "unknown space 'delta_famly'; did you mean delta_family?"),
        (["space=no.yaml"], SpaceError, "no.yaml cannot be read as YAML: No such file or directory"),
        (["baselines=[gla]"], SpaceError, "no choice of its holes makes gla: widen the space or leave gla out"),
        (
            ["model.heads={one_of: []}"],
            ConfigError,
            "heads must be one_of: [a, b] or one_of: {first: a, second: b}; got []",
        ),
        (["model.layers={integer: [3, 2]}"], HoleError, "layers: integer needs finite low < high; got low=3, high=2"),
        (
            ["training.learning_rate={log_uniform: [0, 1]}"],
            HoleError,
            "learning_rate: log_uniform needs a positive range; got low=0",
        ),
        (
            ["model.window={integer: [4, 8]}"],
            SpaceError,
            "got model/window, but no choice of model.pattern has a layer",
        ),
        (["training.batch_tokens={one_of: [32, 64]}"], SpaceError, "no hole may stand where the budget is fixed"),
        (["budget.tokens={one_of: [32, 64]}"], SpaceError, "no hole may stand where the budget is fixed"),
        (
            ["budget.parameters=kdaa"],
            SpaceError,
            "budget.parameters must be a number or the name of a rule: unknown rule",
        ),
        (
            ["model.width={one_of: [16, 32]}", "budget.parameters=kda"],
            SpaceError,
            "a size is solved or searched, not both; got model/width, which budget.parameters solves",
        ),
        (["trials=many"], ConfigError, "trials must be an integer; got 'many'"),
    ],
)
def test_a_bad_question_is_one_line(
    path: Path, overrides: list[str], kind: type[ArchsearchError], message: str
) -> None:
    with pytest.raises(kind) as error:
        checked(path, *overrides)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_holes_may_replace_what_a_space_writes() -> None:
    model = overridden(SPACE.model, {"heads": {"one_of": [1, 2]}, "width": 64}, "model")
    assert model == Model(width=64, heads=one_of(1, 2), layers=2)
    assert overridden(SPACE.training, {"learning_rate": 1e-3}, "training") == Training(learning_rate=1e-3)


def test_a_space_that_is_spent_before_its_trials_is_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    closed = "training.learning_rate=0.003"
    assert exit_code("study", "check", str(path), closed, "trials=9") == 0
    assert "the space is spent after 3 trials beside the baselines; ask for no more" in capsys.readouterr().out
    assert checked(path, closed, "trials=3").spent_after is None
    assert checked(path, "trials=900").spent_after is None, "a range of numbers is never spent"


@pytest.mark.parametrize(
    "override",
    [
        "model.width=1e6",
        "model.heads=70_000",
        "model.layers=1e6",
        "model.mlp_ratio=1e9",
        "model.pattern=[window]",
        "layer.head_dim=1e9",
        "layer.expand_v=1e9",
        "layer.conv=1e6",
        "training.batch_tokens=1e15",
        "budget.parameters=1e18",
        "budget.tokens=1e18",
        "budget.state_bytes=1e30",
        "tasks.mqar.length=1e12",
        "tasks.mqar.vocabulary=1e12",
        "tasks.mqar.evaluation=1e9",
        "tasks.mqar.tokens=1e16",
        "evaluations=1e6",
        "trials=1e9",
        "rungs.count=65",
        "resources.gpus=1e-300",
        "seeds.finals=1",
        "model.layers={integer: [1, 1000000000]}",
    ],
)
def test_an_absurd_size_is_one_line_with_its_key_and_its_file(
    path: Path, capsys: pytest.CaptureFixture[str], override: str
) -> None:
    if override == "model.pattern=[window]":
        override = "model={pattern: [window], window: 1e12}"
    assert exit_code("study", "check", str(path), override) == 2
    said = capsys.readouterr().err
    key = override.split("=")[0].rpartition(".")[2]
    assert said.count("\n") == 1 and key in said and str(path) in said


def test_a_budget_that_no_size_meets_is_refused_before_anything_is_written(path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        run_study(read_config(StudyConfig, path, ["budget.parameters=1e14"]))
    assert str(error.value).startswith(
        "budget.parameters must be one that the space's sizes can meet; the nearest of kda"
    )
    assert [each.name for each in path.parent.iterdir()] == ["study.yaml"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["baselines=[kda, kda]"], "baselines must differ; got kda twice; leave one out"),
        (["trials=0", "baselines=[]"], "a study needs trials, baselines or entrants; got none of them"),
        (["objectives={step_milliseconds: maximize}"], "objectives.step_milliseconds must be minimize: it is better"),
        (["objectives={state_bytes: maximize}"], "objectives.state_bytes must be minimize: it is better that way"),
        (["storage=sqlite://"], "it lies in memory, and nothing could be resumed from it; write it as sqlite:///FILE"),
        (["storage='sqlite:///:memory:'"], "it lies in memory"),
        (["storage='sqlite:///file:x?mode=memory&uri=true'"], "it lies in memory"),
        (
            ["training.learning_rate={uniform: [-1, 1]}"],
            "training/learning_rate has a range from -1 to 1, whose end -1 is none: training.learning_rate must be > 0",
        ),
        (
            ["model.heads={integer: [0, 4]}"],
            "model/heads has a range from 0 to 4, whose end 0 is none: model.heads must be >= 1; got 0",
        ),
        (["storage=sqlite:////nonexistent/x.db"], "there is no directory /nonexistent"),
        (["storage=nonsense"], "storage must be journal or the URL of a database that answers; got nonsense"),
        (["storage=postgresql+psycopg://user@127.0.0.1:1/x"], "connection failed"),
        (["storage=sqlite:///{path}"], "file is not a database"),
    ],
)
def test_what_could_not_be_gone_on_with_or_meant_is_refused(
    path: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], message: str
) -> None:
    given = [override.replace("{path}", str(path)) for override in overrides]
    assert exit_code("study", "check", str(path), *given) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and str(path) in said
    assert [each.name for each in path.parent.iterdir()] == ["study.yaml"]
