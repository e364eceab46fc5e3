"""`archsearch check`: a sound rule passes, an unsound one or a wrong kernel fails, what did not run is not passed."""

import json
from pathlib import Path

import pytest
import torch

from archsearch.cli import main
from archsearch.dsl import Rule, delta_write, erase, gate, key, query, read, value, write
from archsearch.errors import BackendError
from archsearch.kernels import chunkwise, commands
from archsearch.kernels.call import Call, Result
from archsearch.kernels.conformance.suite import setting_of
from archsearch.kernels.growth import results_have_their_kind, state_holds_no_more_than_was_written
from archsearch.kernels.ladder import ROWS, Status, climb
from archsearch.lowering import NormalForm
from archsearch.mixers.zoo import rules

q, k, e, v = query("q"), key("k"), key("e"), value("v")


@pytest.fixture
def a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch form with a trace of the last token in every output."""
    sound = chunkwise.run

    def run(form: NormalForm, call: Call, chunk_size: int | None) -> Result:
        output, state = sound(form, call, chunk_size)
        return Result(output + 1e-3 * output[:, -1:] if output.shape[1] else output, state)

    monkeypatch.setattr(chunkwise, "run", run)


@pytest.mark.parametrize("name", ["gated_delta_net", "linear"])
def test_a_sound_rule_passes_every_row_that_can_run(name: str) -> None:
    lines = list(climb(rules[name], "torch"))
    assert [line.row for line in lines] == [row.number for row in ROWS]
    assert {line.status for line in lines if line.row != 3} == {Status.PASSED}
    assert all(line.error is not None and line.bound is not None for line in lines if line.row != 3)


def test_what_did_not_run_is_not_called_passed() -> None:
    (line,) = (line for line in climb(rules["linear"], "reference") if line.row == 3)
    assert (line.status, line.error) == (Status.NOT_RUN, None)
    assert line.where in ("no CUDA device", 'backend "reference" was asked for')


@pytest.mark.usefixtures("a_leak")
def test_a_leak_fails_the_rows_that_see_it() -> None:
    failed = {line.row for line in climb(rules["linear"], "torch") if line.status is Status.FAILED}
    assert {2, 5, 6} <= failed
    assert 8 not in failed


@pytest.mark.usefixtures("a_leak")
def test_a_failed_check_ends_with_1_and_names_the_property(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["check", "simple_gla", "--backend", "torch"])
    said = capsys.readouterr().out
    assert left.value.code == 1
    assert "FAILED   5  no token sees a later one" in said
    assert "future_does_not_leak" in said and "simple_gla FAILS" in said


def test_json_holds_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    found = commands.check(rules["linear"], backend="torch", json=True)
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads(json.dumps(found.as_json()))
    assert said["passed"] and said["hash"] == rules["linear"].hash
    assert [row["row"] for row in said["rows"]] == [row.number for row in ROWS]


TEN_LINES = '''"""S <- a S;  S <- S - c e (S^T e)^T;  S <- S + b k (v - S^T (k + l q))^T;  o = S^T q."""
from archsearch import Rule, decay, delta_write, erase, gate, key, log_decay, query, query_feedback, read, value

q, k, e, v = query("q"), key("k"), key("e"), value("v")
a, b, c, l = log_decay("a"), gate("b"), gate("c"), gate("l")

erased = erase(e, strength=c)
written = delta_write(k, v, strength=b, residual=query_feedback(q, l))

RULE = Rule("mine", decay(a), erased, written, read(q))
'''


def test_a_rule_of_ten_lines_climbs_the_whole_ladder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but its file: kernels, layer and model come with it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert len(TEN_LINES.splitlines()) == 10
    path = tmp_path / "mine.py"
    path.write_text(TEN_LINES, encoding="utf-8")
    with pytest.raises(SystemExit) as left:
        main(["check", str(path)])
    said = capsys.readouterr()
    assert (left.value.code, said.err) == (0, ""), said.out
    assert "mine passes: 13 passed, 0 failed, 0 not run" in said.out
    assert [line[8:10] for line in said.out.splitlines()[:13]] == [f"{n:>2}" for n in (1, 1, 2, 2, *range(3, 12))]
    assert "in Triton's interpreter" in said.out and "no contraction: one token can enlarge the state" in said.out


@pytest.mark.parametrize("backend", ["triton", "fast"])
def test_a_backend_that_cannot_run_is_refused(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match=backend):
        next(climb(rules["linear"], backend))


@pytest.mark.parametrize(
    "rule",
    [
        Rule("erases_too_much", erase(e, strength=3.0), write(k, v), read(q)),
        Rule("recalls_elsewhere", delta_write(k, v, residual=q), read(q)),
    ],
    ids=lambda rule: rule.name,
)
def test_a_state_that_grows_without_bound_is_found(rule: Rule) -> None:
    assert not state_holds_no_more_than_was_written(setting_of(rule, "torch")).passed


@pytest.mark.parametrize("strength", [1.0, 2.0, gate("beta")], ids=str)
def test_a_state_of_delta_writes_stays_in_range(strength: object) -> None:
    verdict = state_holds_no_more_than_was_written(
        setting_of(Rule("d", delta_write(k, v, strength=strength), read(q)), "torch")
    )
    assert verdict.passed and 0 < verdict.error < 0.5


@pytest.mark.parametrize("broken", ["shape", "dtype", "finite"])
def test_a_result_of_another_kind_is_found(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = chunkwise.run

    def run(form: NormalForm, call: Call, chunk_size: int | None) -> Result:
        output, state = sound(form, call, chunk_size)
        match broken:
            case "shape":
                return Result(output[:, :, :2], state)
            case "dtype":
                return Result(output, state.bfloat16())
            case _:
                return Result(output * torch.nan, state)

    setting = setting_of(rules["linear"], "torch", dtype=torch.float32)
    assert results_have_their_kind(setting).passed
    monkeypatch.setattr(chunkwise, "run", run)
    assert not results_have_their_kind(setting).passed
