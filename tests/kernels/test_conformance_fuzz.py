"""The long run over random rules: a sample of it, what it says of a rule that fails, and how far that is shrunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hypothesis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from archsearch.dsl import Rule, parse_rule
from archsearch.errors import RuleError
from archsearch.kernels.conformance import Verdict, fuzz
from archsearch.kernels.conformance.random_rules import random_rule
from archsearch.lowering import lower


def failing(wrong: bool) -> Sequence[Verdict]:
    return (Verdict("agrees", float(wrong), 0.5, "output"),)


def reads_before_its_token(rule: Rule) -> Sequence[Verdict]:
    return failing(any(row.previous for row in lower(rule).rows))


def has_a_bonus(rule: Rule) -> Sequence[Verdict]:
    return failing(lower(rule).read.bonus is not None)


def is_normalised(rule: Rule) -> Sequence[Verdict]:
    return failing(lower(rule).read.normaliser is not None)


def decays_per_channel_after_a_step(rule: Rule) -> Sequence[Verdict]:
    form = lower(rule)
    return failing(form.decay_kind == "channel" and any(row.decays == 0 for row in form.rows))


@settings(max_examples=40)
@given(fuzz.rules())
def test_torch_agrees_on_any_rule(rule: Rule) -> None:
    failed = [str(verdict) for verdict in fuzz.agrees(rule, "torch") if not verdict.passed]
    assert not failed, f"{failed}\n{rule}"


@pytest.mark.parametrize("number", range(1000, 1040))
def test_a_sample_of_the_long_run_agrees_in_torch(number: int) -> None:
    (found,) = fuzz.run("torch", [number], 1)
    assert found.fault is None, str(found.fault)


@pytest.mark.parametrize("number", range(1000, 1006))
def test_a_sample_of_the_long_run_agrees_in_triton(number: int, interpreted: torch.device) -> None:
    (found,) = fuzz.run("triton", [number], 1)
    assert found.fault is None, str(found.fault)


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(60))
def test_the_long_run_agrees_compiled(number: int) -> None:
    (found,) = fuzz.run("triton", [number], 1, shrink=False)
    assert found.fault is None, str(found.fault)


@pytest.mark.parametrize("check", [reads_before_its_token, has_a_bonus, is_normalised, decays_per_channel_after_a_step])
def test_a_rule_that_fails_is_shrunk_to_what_fails(check: Callable[[Rule], Sequence[Verdict]]) -> None:
    found = next(each for each in (fuzz.tried(number, check) for number in range(100)) if each.fault)
    assert found.fault is not None
    form = lower(found.fault.rule)
    assert (len(form.rows), len(form.decays)) == (1, int(check is decays_per_channel_after_a_step))
    assert len(form.operands) <= 5
    assert "FAILED  agrees: error 1.00e+00" in str(found.fault)
    assert parse_rule(str(found.fault).split("\n", 1)[1]) == found.fault.rule


def test_a_number_is_a_rule_and_another_number_another() -> None:
    hashes = [fuzz.tried(number, lambda _: ()).hash for number in (3, 4, 3)]
    assert hashes[0] == hashes[2] != hashes[1]


@pytest.mark.parametrize("size", [32, 48])
def test_every_number_is_a_rule_that_was_checked_however_often_hypothesis_refuses(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So few bytes end before many rules do."""
    checked: list[str] = []

    def check(rule: Rule) -> Sequence[Verdict]:
        checked.append(rule.hash)
        return failing(False)

    monkeypatch.setattr(fuzz, "BYTES", size)
    assert [fuzz.tried(number, check).hash for number in range(20)] == checked


def test_a_number_without_a_rule_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "BYTES", 1)
    with pytest.raises(RuleError) as caught:
        fuzz.tried(3, lambda _: failing(False))
    assert str(caught.value) == (
        f"number 3 must be a rule; hypothesis {hypothesis.__version__} made none of 100 times 1 random bytes. "
        "Install another version of it"
    )


def test_a_whole_number_is_asked_for_from_0() -> None:
    """From bytes, hypothesis before 6.170 finds no number between 2 and 3: one bit is 0 or 1."""
    asked: list[SearchStrategy[int]] = []

    def draw(strategy: SearchStrategy[int]) -> int:
        asked.append(strategy)
        return 1

    assert fuzz.Drawn(draw).randint(2, 3) == 3
    assert repr(asked[0]) == repr(st.integers(0, 1))


def test_an_error_is_a_fault() -> None:
    def check(rule: Rule) -> Sequence[Verdict]:
        raise ZeroDivisionError(rule.name)

    found = fuzz.tried(0, check, shrink=False)
    assert found.fault is not None and found.fault.said == "ZeroDivisionError: random"


def test_numbers_of_the_seeded_lists_keep_their_rules() -> None:
    """Tests elsewhere name rules by their numbers, with what was measured of them."""
    assert 'erase(key("k") + 0.5 * query("p"), strength=gate("lam"))' in str(random_rule(2002))


def test_the_command_prints_counts_and_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--rules", "3", "--processes", "1"]) == 0
    assert capsys.readouterr().out.startswith("3 rules, 3 forms: 0 faults; torch, ")


def test_the_command_prints_a_fault_as_code_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "agrees", lambda rule, backend: failing(True))
    assert fuzz.main(["--rules", "1", "--processes", "1", "--no-shrink"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("rule 0:\nFAILED  agrees: error 1.00e+00, bound 5.00e-01  output\nRule(\n")
    assert "1 rules, 1 forms: 1 faults" in said
