"""A rule that breaks its promises is never trained, and one that keeps them is checked once."""

from pathlib import Path
from typing import Any

import pytest

from archsearch.dsl import Rule
from archsearch.mixers.layer.options import Gated, Layer
from archsearch.mixers.lookup import find_rule
from archsearch.studies.design.config import StudyConfig
from archsearch.studies.engine.checking import check_study
from archsearch.studies.engine.run import run_study
from archsearch.studies.evidence.rows import read_evidence
from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Outcome, Unbuildable
from archsearch.studies.report.study_page import write_report
from archsearch.studies.training import validity
from archsearch.studies.training.configuration import read_config
from archsearch.studies.training.validity import require_valid, why_unsound

CONFIG = """
space: {home}/growing.py
directory: {home}/study
tasks: {{mqar: {{length: 16, pairs: 2, vocabulary: 16, evaluation: 8, tokens: 256}}}}
trials: 2
sampler: {{kind: grid}}
training: {{batch_tokens: 64}}
evaluations: 1
rungs: {{count: 1, free_pass_every: 0}}
"""
SPACE = """
from archsearch.dsl import Rule, delta_write, gate, key, query, read, simultaneous, value, write
from archsearch.holes import one_of
from archsearch.mixers.models.options import Model
from archsearch.spaces.space import Space

q, k, v, a, b = query("q"), key("k"), value("v"), key("a"), key("b")
grows = simultaneous(delta_write(a, 0.0 * v, strength=-1.0, residual=b, reads="previous"), write(k, v))
SPACE = Space(
    rule=Rule("mixed", one_of(sound=delta_write(k, v, strength=gate("beta")), growing=grows, name="step"), read(q)),
    model=Model(width=16, heads=1, layers=1, mlp_ratio=0),
)
"""


def test_a_sound_rule_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "checks.jsonl"
    asked: list[Rule] = []
    monkeypatch.setattr(validity, "_failures", lambda rule, fed: asked.append(rule) or ())  # pyright: ignore
    for _ in range(2):
        require_valid(str(find_rule("delta_net")), None, file)
    require_valid(str(find_rule("gated_delta_net")), None, file)
    assert [rule.name for rule in asked] == ["delta_net", "gated_delta_net"]
    assert [line["passed"] for line in records.read_lines(file)] == [True, True]


def test_a_rule_whose_state_grows_is_refused_with_its_row(tmp_path: Path) -> None:
    rule = Rule("grows", *find_rule("iplr").steps)
    assert why_unsound(find_rule("delta_net")) == ()
    with pytest.raises(Unbuildable, match=r"does not pass its checks: row 8, the state stays in range: .*enlarge"):
        require_valid(str(rule), None, tmp_path / "checks.jsonl")
    (line,) = records.read_lines(tmp_path / "checks.jsonl")
    assert line["passed"] is False and line["rule_hash"] == rule.hash
    with pytest.raises(Unbuildable):
        require_valid(str(rule), None, tmp_path / "checks.jsonl")


@pytest.mark.parametrize("name", ["iplr", "dplr"])
def test_a_rule_is_sound_in_the_layer_that_keeps_its_state_and_unsound_in_another(name: str, tmp_path: Path) -> None:
    rule, file = find_rule(name), tmp_path / "checks.jsonl"
    require_valid(str(rule), None, file)  # the zoo's layer makes a of b
    with pytest.raises(Unbuildable, match=r"row 8, the state stays in range: .*enlarge the state 2 times"):
        require_valid(str(rule), Layer(), file)
    kept, refused = records.read_lines(file)
    assert (kept["passed"], refused["passed"]) == (True, False)
    assert kept["rule_hash"] == refused["rule_hash"] and kept["fed"] and refused["fed"] is None
    assert why_unsound(rule, Layer(operands={"a": Gated("b", scale=-1.0)})) == ()
    assert why_unsound(rule, Layer(operands={"a": Gated("b", scale=1.0)})), "it adds what it should take away"


def test_a_study_never_trains_a_rule_that_fails_and_says_why(tmp_path: Path, threads: Any) -> None:
    from archsearch.studies.workers.body import TrainingBody

    (tmp_path / "growing.py").write_text(SPACE)
    (tmp_path / "study.yaml").write_text(CONFIG.format(home=tmp_path))
    study = run_study(tmp_path / "study.yaml", workers=lambda config: threads(TrainingBody(1)))
    rows = {row.choices["rule/step"]: row for row in read_evidence(study).rows}
    assert rows["sound"].outcome is Outcome.COMPLETE
    growing = rows["growing"]
    assert growing.outcome is Outcome.COMPILE_ERROR and growing.message.startswith(
        "Unbuildable: the rule does not pass"
    )
    assert (growing.tokens, growing.seconds, growing.curve) == (0, 0.0, [])
    assert not StudyDirectory(study.path).trial(growing.number).checkpoints.exists()
    page = write_report(study).read_text(encoding="utf-8")
    failed = page[page.index("What failed") :]
    assert "compile_error" in failed and "row 8, the state stays in range" in failed


def test_a_check_of_the_study_names_the_rule_that_would_not_be_trained(tmp_path: Path) -> None:
    (tmp_path / "growing.py").write_text(SPACE)
    (tmp_path / "study.yaml").write_text(CONFIG.format(home=tmp_path))
    found = check_study(read_config(StudyConfig, tmp_path / "study.yaml"))
    (bad,) = found.bad
    assert "growing" in bad.name and bad.error.startswith("row 8, the state stays in range")
