"""Verdicts: exact distributions, exact corrections, and what word follows from which numbers."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from archsearch.studies.evidence.comparison import (
    Contest,
    Documents,
    Interval,
    Strictness,
    Word,
    holm,
    judge,
    resampled,
    student,
)
from archsearch.studies.evidence.student import critical, two_sided
from archsearch.studies.tasks.direction import Direction

MAX, MIN = Direction.MAXIMIZE, Direction.MINIMIZE
SPREAD = [-1.0, 1.0, -0.5, 0.5, -0.2, 0.2]


def contest(mean: float, *, scale: float = 1.0, direction: Direction = MAX, band: float = 0.0, n: int = 6) -> Contest:
    """Differences of the given mean; the spread of six has the deviation 0.718 scale."""
    return Contest("x", direction, [mean + scale * d for d in SPREAD[:n]], [0.0] * n, band)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 2.5706, 12.0])
def test_tails_are_those_of_the_closed_forms(t: float) -> None:
    assert two_sided(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-14)
    assert two_sided(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-14)
    assert two_sided(-t, 4) == two_sided(t, 4)


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 8, 29])
def test_tails_are_the_integral_of_the_density(freedom: int) -> None:
    logarithm = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    x = np.linspace(0.0, 1.7, 20_001)
    density = math.exp(logarithm) * (1 + x * x / freedom) ** (-(freedom + 1) / 2)
    inside = 2 * float(np.trapezoid(density, x))
    assert two_sided(1.7, freedom) == pytest.approx(1 - inside, abs=1e-8)


@pytest.mark.parametrize(
    ("level", "freedom", "value"), [(0.95, 5, 2.570582), (0.95, 1, 12.706205), (0.9, 9, 1.833113), (0.99, 4, 4.604095)]
)
def test_quantiles_are_those_of_published_tables(level: float, freedom: int, value: float) -> None:
    assert critical(level, freedom) == pytest.approx(value, abs=1e-6)


def test_holm_is_the_closed_test_of_bonferroni() -> None:
    """A hypothesis falls when every set of hypotheses with it falls by Bonferroni: the definition, by all subsets."""
    p = [0.01, 0.04, 0.03, 0.2]
    for i, corrected in enumerate(holm(p)):
        sets = [s for s in product((False, True), repeat=4) if s[i]]
        assert corrected == pytest.approx(max(min(1.0, sum(s) * min(p[j] for j in range(4) if s[j])) for s in sets))
    assert holm([]) == []


def test_an_interval_is_the_t_interval() -> None:
    interval = student([1.0, 2.0, 3.0])
    half = 4.302652729749464 / math.sqrt(3)
    assert (interval.mean, interval.n) == (2.0, 3)
    assert (interval.low, interval.high) == pytest.approx((2 - half, 2 + half))
    assert (student([1.0]).low, student([1.0]).high) == (-math.inf, math.inf)
    with pytest.raises(ValueError, match="an interval needs at least one number"):
        student([])


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (contest(2.0), Word.WIN),
        (contest(-2.0), Word.LOSS),
        (contest(2.0, direction=MIN), Word.LOSS),
        (contest(-2.0, direction=MIN), Word.WIN),
        (contest(0.2), Word.UNDECIDED),
        (contest(0.2, band=2.0), Word.TIE),
        (contest(0.02, scale=0.001, band=0.05), Word.TIE),
        (contest(0.02, scale=0.001, band=0.01), Word.WIN),
        (contest(0.0, scale=0.0), Word.TIE),
        (contest(3.0, scale=0.0), Word.WIN),
        (contest(2.0, n=5), Word.UNDECIDED),
    ],
)
def test_the_word_follows_from_interval_band_and_direction(given: Contest, word: Word) -> None:
    assert judge([given])[0].word is word


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (contest(2.0, n=5), "5 paired fresh seeds; a verdict needs 6"),
        (contest(0.2), "the interval over 6 seeds holds 0"),
        (contest(0.2, band=2.0), "the difference is less than 2"),
        (contest(0.02, scale=0.001, band=0.05), "the difference is less than 0.05, though not 0"),
        (replace(contest(0.0, scale=0.001, band=0.01), in_points=True), "the difference is less than 1 point"),
        (replace(contest(0.0, scale=0.001, band=0.025), in_points=True), "the difference is less than 2.5 points"),
        (contest(2.0), "the interval leaves out 0; p is 0.001 after Holm's correction"),
        (contest(9.0), "the interval leaves out 0; p is below 0.001 after Holm's correction"),
    ],
)
def test_the_reason_is_said(given: Contest, reason: str) -> None:
    assert judge([given])[0].reason == reason


def test_a_rule_that_failed_on_a_seed_wins_nothing() -> None:
    lucky = Contest("x", MAX, [2.0 + d for d in SPREAD], [0.0] * 6, failed="unstable on 1 of 7 seeds")
    assert (judge([lucky])[0].word, judge([lucky])[0].reason) == (
        Word.UNDECIDED,
        "not every seed has a value: unstable on 1 of 7 seeds",
    )


def test_a_family_needs_more_than_one_alone() -> None:
    alone = contest(0.85)
    assert judge([alone])[0].word is Word.WIN
    among = judge([alone, *[contest(0.1)] * 4])[0]
    assert among.word is Word.UNDECIDED and "after Holm's correction" in among.reason
    assert among.difference == judge([alone])[0].difference


def test_a_judgement_keeps_its_numbers() -> None:
    found = judge([contest(2.0, band=0.25)])[0]
    assert found.difference.mean == pytest.approx(2.0) and found.median == pytest.approx(2.0)
    assert found.deviation == pytest.approx(float(np.std(SPREAD, ddof=1)))
    assert (found.band, found.over, found.difference.n) == (0.25, "seeds", 6)
    assert found.p == found.corrected == pytest.approx(two_sided(2 / (found.deviation / math.sqrt(6)), 5))


def documents(spread: float, n: int = 6, texts: int = 20) -> Documents:
    """Texts of 8 bytes; the entrant needs one bit a byte more, more on some texts and less on others."""
    bits = np.full((n, texts), 16.0)
    by_text = 8 * spread * np.linspace(-1, 1, texts)
    by_seed = 0.01 * np.arange(n)[:, None]
    return Documents(bits + 8 + by_text + by_seed, bits, np.full(texts, 8.0))


def test_documents_that_disagree_widen_the_interval() -> None:
    values = [float(row.sum() / 160) for row in documents(4.0).bits]
    given = Contest("x", MIN, values, [2.0] * 6, documents=documents(4.0))
    found = judge([given])[0]
    assert found.over == "seeds and documents" and found.word is Word.UNDECIDED
    assert judge([Contest("x", MIN, values, [2.0] * 6)])[0].word is Word.LOSS
    agreed = judge([Contest("x", MIN, values, [2.0] * 6, documents=documents(0.0))])[0]
    assert agreed.over == "seeds" and agreed.word is Word.LOSS


def test_resampled_documents_have_the_spread_of_their_mean() -> None:
    low, high = resampled(documents(4.0, texts=50))
    deviation = 4.0 * float(np.std(np.linspace(-1, 1, 50))) / math.sqrt(50)
    assert (low + high) / 2 == pytest.approx(1.0, abs=0.05)
    assert high - low == pytest.approx(2 * 1.96 * deviation, rel=0.05)
    assert (low, high) == resampled(documents(4.0, texts=50))


def test_long_documents_weigh_by_their_bytes() -> None:
    """Both texts once: 1009 bits of 1001 bytes; the long one twice: 1; the short one twice: 9."""
    sizes = np.array([1000.0, 1.0])
    given = Documents(np.array([[1000.0, 9.0]] * 6), np.zeros((6, 2)), sizes)
    assert resampled(given, Strictness(level=0.6)) == pytest.approx((1.0, 9.0))
    assert resampled(given, Strictness(level=0.2)) == pytest.approx((1009 / 1001, 1009 / 1001))


def test_bounds_hold_what_lies_between_them() -> None:
    assert Interval(0.0, -1.0, 1.0, 3).holds(1.0) and not Interval(0.0, -1.0, 1.0, 3).holds(1.01)
