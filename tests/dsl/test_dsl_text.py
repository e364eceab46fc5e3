"""A rule prints as code that reads back as the same rule."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsearch.dsl import Rule, decay, delta_write, erase, gate, key, log_decay, parse_rule, query, read, value, write
from archsearch.holes import integer, log_uniform, one_of, optional, resolve, uniform
from archsearch.kernels.conformance.made_up import RULES
from archsearch.kernels.conformance.random_rules import random_rule
from archsearch.mixers.zoo import rules

q, k, e, v, beta, g = query("q"), key("k"), key("e"), value("v"), gate("beta"), log_decay("g")


@pytest.mark.parametrize("rule", [*rules.values(), *RULES], ids=lambda rule: rule.name)
def test_every_rule_reads_back(rule: Rule) -> None:
    assert parse_rule(str(rule)) == rule


@given(seed=st.integers(0, 10**9))
def test_random_rules_read_back(seed: int) -> None:
    rule = random_rule(seed)
    assert parse_rule(str(rule)) == rule


def combined(how: tuple[str, Any, Any, float]) -> Any:
    operation, x, y, number = how
    match operation:
        case "sum":
            return x + y
        case "difference":
            return x - y
        case "negative":
            return -x
        case "number first":
            return number * x
        case "number last":
            return x * number
        case "gate first":
            return (beta * x) * number
        case _:
            return beta * (x * number)


OPERATIONS = ("sum", "difference", "negative", "number first", "number last", "gate first", "gate outside")
NUMBERS = (-1.0, -0.5, 1.0, 2.0, 1e-7, 1 / 3)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(st.sampled_from(OPERATIONS), inner, inner, st.sampled_from(NUMBERS)).map(combined)


EXPRESSIONS: st.SearchStrategy[Any] = st.recursive(st.sampled_from([k, e]), larger, max_leaves=6)
"""Sums and products of two keys, a gate and numbers, grouped in every way."""


@given(address=EXPRESSIONS)
def test_brackets_stand_where_they_must(address: Any) -> None:
    rule = Rule("bracketed", write(address, v), read(q))
    assert parse_rule(str(rule)) == rule


@pytest.mark.parametrize(
    "rule",
    [
        Rule("open", optional(decay(g)), write(k, v), read(q)),
        Rule("open", one_of(none=None, own=erase(e, strength=beta), read=erase(q), name="erase"), write(k, v), read(q)),
        Rule("open", write(k, v, strength=one_of(0.5, 1.0, 2, beta, name="s")), read(one_of(q, k))),
        Rule("open", write(k, v, strength=one_of(beta, half=0.5, whole=1.0)), read(q)),
        Rule("open", delta_write(k + uniform(0.0, 1.0) * e, v, reads=optional("previous")), read(q)),
        Rule("open", write(k, v, strength=log_uniform(1e-3, 1.0, name="s")), read(q, scale=integer(1, 4))),
    ],
)
def test_rules_with_holes_read_back(rule: Rule) -> None:
    again = parse_rule(str(rule))
    assert again == rule
    assert again.holes == rule.holes


def test_a_step_prints_with_operands_by_name() -> None:
    assert str(delta_write(k, v, strength=beta)) == "delta_write(k, v, strength=beta)"


def test_a_rule_prints_with_operands_written_out() -> None:
    assert str(rules["gated_delta_net"]) == (
        "Rule(\n"
        '    "gated_delta_net",\n'
        '    decay(log_decay("g")),\n'
        '    delta_write(key("k"), value("v"), strength=gate("beta")),\n'
        '    read(query("q")),\n'
        ")"
    )


def test_a_short_rule_is_one_line() -> None:
    assert str(rules["linear"]) == 'Rule("linear", write(key("k"), value("v")), read(query("q")))'


def test_operands_stand_in_the_order_of_first_use_with_signs_after_their_decays() -> None:
    rule = Rule("signed", decay(log_decay("g", signed=True)), delta_write(k, v, strength=beta), read(q))
    assert list(rule.operands) == ["g", "g_sign", "k", "v", "beta", "q"]
    assert [operand.shape for operand in rule.operands.values()] == [
        "[B, T, HV]",
        "[B, T, HV]",
        "[B, T, H, K]",
        "[B, T, HV, V]",
        "[B, T, HV]",
        "[B, T, H, K]",
    ]


def test_a_filled_rule_is_the_rule_written_out() -> None:
    rule = Rule("r", optional(decay(g), name="decay"), write(k, v, strength=uniform(0.0, 1.0)), read(q))
    filled = resolve(rule, {"decay": "yes", "strength": 0.25})
    assert filled == Rule("r", decay(g), write(k, v, strength=0.25), read(q))
    assert resolve(rule, {"decay": "no", "strength": 0.5}) == Rule("r", write(k, v, strength=0.5), read(q))


def test_rules_are_frozen_and_hashable() -> None:
    assert len({rules["kda"], rules["kda"], rules["eda"]}) == 2
    with pytest.raises(AttributeError):
        rules["kda"].name = "other"  # type: ignore[misc]
