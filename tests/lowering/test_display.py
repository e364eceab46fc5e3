"""Equations: every rule of the language prints, what is printed is what is meant, and holes are refused."""

from collections.abc import Callable

import pytest

from archsearch.dsl import (
    Rule,
    bonus,
    channel_gate,
    decay,
    delta_write,
    erase,
    gate,
    key,
    log_decay,
    query,
    query_feedback,
    read,
    simultaneous,
    value,
    write,
)
from archsearch.errors import HoleError
from archsearch.holes import one_of
from archsearch.lowering import lower
from archsearch.lowering.display import equation, latex, one_line
from archsearch.lowering.notation import LATEX, UNICODE
from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.zoo import rules

q, k, e, u, v = query("q"), key("k"), key("e"), key("u"), value("v")
g, beta, gamma, lam = log_decay("g"), gate("beta"), gate("gamma"), gate("lam")
signed = log_decay("g", per="channel", signed=True)
b, w = channel_gate("b"), channel_gate("w", of="value")

MADE_UP = (
    Rule("together", decay(g), simultaneous(erase(e, strength=gamma), delta_write(k, v, strength=beta)), read(q)),
    Rule("previous", decay(g), delta_write(k, v, strength=beta, reads="previous"), read(q - 0.5 * k)),
    Rule("read_first", read(q, bonus=bonus(u, k, v)), decay(g), write(k, v)),
    Rule(
        "at_the_query",
        erase(q, strength=0.5 * gamma),
        decay(-0.1),
        write(k + lam * q, v, strength=beta),
        read(q, scale=1),
    ),
    Rule(
        "everything",
        decay(signed),
        delta_write(k - 0.5 * e, v - w * v, strength=-1.0 * beta * beta, residual=beta * (b * k) + lam * q),
        read(q + k, scale=0.5, bonus=bonus(u - e, k, v)),
        erase(e),
    ),
    delta_product(5, gated=True),
)
ALL = (*rules.values(), *MADE_UP)


def every(text: Callable[[Rule], str]) -> str:
    return "\n\n".join(f"{rule.name}\n{text(rule)}" for rule in ALL)


def test_golden_equations(golden: Callable[[str], None]) -> None:
    golden(every(equation))


def test_golden_latex(golden: Callable[[str], None]) -> None:
    golden(every(latex))


def test_golden_one_line(golden: Callable[[str], None]) -> None:
    golden("\n".join(f"{rule.name}: {one_line(rule)}" for rule in ALL))


def test_golden_normal_forms(golden: Callable[[str], None]) -> None:
    golden("\n\n".join(str(lower(rule)) for rule in ALL))


def test_the_equation_is_the_one_of_the_paper() -> None:
    assert equation(rules["q_delta"]).splitlines() == [
        "S′ = exp(g) Sₜ₋₁",
        "Sₜ = S′ + β k (v − S′ᵀ (k + λ q))ᵀ",
        "o  = Sₜᵀ q / √K",
    ]
    assert one_line(rules["eda"]) == "Sₜ = (I − β k kᵀ) (I − γ e eᵀ) Diag(exp(g)) Sₜ₋₁ + β k vᵀ"


def test_steps_in_another_order_are_another_equation() -> None:
    steps = (erase(e, strength=gamma), delta_write(k, v, strength=beta))
    spellings = [
        Rule("mine", *steps, read(q)),
        Rule("mine", *reversed(steps), read(q)),
        Rule("mine", simultaneous(*steps), read(q)),
        Rule("mine", steps[0], read(q), steps[1]),
        Rule("mine", read(q), *steps),
    ]
    for text in (equation, latex, one_line):
        assert len({text(rule) for rule in spellings}) == len(spellings)


def test_every_operand_stands_in_the_equation() -> None:
    for rule in ALL:
        for name in rule.operands:
            assert UNICODE.symbol(name) in equation(rule)
            assert LATEX.symbol(name) in latex(rule)


@pytest.mark.parametrize(
    ("name", "in_unicode", "in_latex"),
    [
        ("lam", "λ", r"\lambda"),
        ("beta2", "β₂", r"\beta_{2}"),
        ("k10", "k₁₀", "k_{10}"),
        ("dt", "dt", r"\mathrm{dt}"),
        ("g_sign", "g_sign", r"g_{\mathrm{sign}}"),
        ("k_2", "k₂", "k_{2}"),
    ],
)
def test_names_become_symbols(name: str, in_unicode: str, in_latex: str) -> None:
    assert (UNICODE.symbol(name), LATEX.symbol(name)) == (in_unicode, in_latex)


@pytest.mark.parametrize(
    ("number", "in_unicode", "in_latex"),
    [
        (-0.5, "−0.5", "-0.5"),
        (1e-6, "10⁻⁶", "10^{-6}"),
        (-1e-7, "−10⁻⁷", "-10^{-7}"),
        (2.5e-8, "2.5 · 10⁻⁸", r"2.5 \cdot 10^{-8}"),
        (1e12, "10¹²", "10^{12}"),
    ],
)
def test_small_and_large_numbers_have_a_power_of_ten(number: float, in_unicode: str, in_latex: str) -> None:
    assert (UNICODE.number(number), LATEX.number(number)) == (in_unicode, in_latex)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_brackets_and_braces_close(rule: Rule) -> None:
    for text in (equation(rule), one_line(rule), latex(rule)):
        for opening, closing in ("()", "{}"):
            assert text.count(opening) == text.count(closing)


@pytest.mark.parametrize("text", [equation, latex, one_line])
def test_open_holes_are_refused(text: Callable[[Rule], str]) -> None:
    rule = Rule("open", delta_write(k, v, residual=one_of(None, query_feedback(q, lam), name="residual")), read(q))
    with pytest.raises(HoleError, match="residual"):
        text(rule)
