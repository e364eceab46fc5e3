"""The long run over random rules: a sample of it, what it says of a rule that fails, and how far that is shrunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings

from archsearch.dsl import Rule, parse_rule
from archsearch.kernels.conformance import Verdict, fuzz
from archsearch.kernels.conformance.random_rules import random_rule
from archsearch.lowering import lower


def failing(wrong: bool) -> Sequence[Verdict]:
    return (Verdict("agrees", float(wrong), 0.5, "output"),)


def reads_before_its_token(rule: Rule) -> Sequence[Verdict]:
    return failing(any(row.previous for row in lower(rule).rows))


def has_a_bonus(rule: Rule) -> Sequence[Verdict]:
    return failing(lower(rule).read.bonus is not None)


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


@pytest.mark.parametrize("check", [reads_before_its_token, has_a_bonus, decays_per_channel_after_a_step])
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
