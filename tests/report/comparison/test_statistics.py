"""Paired tests, against scipy and against all signs counted by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from cprompt.report.comparison.statistics import MOST_EXACT, least_p, paired_test, sign_flip_p


def test_the_t_test_and_its_interval_are_scipys() -> None:
    a, b = [50.0, 61.0, 58.5, 47.0], [52.0, 66.0, 58.0, 51.5]
    found = paired_test(a, b)
    theirs = stats.ttest_rel(b, a)
    assert found.pairs == 4
    assert found.difference == pytest.approx(2.75)
    assert found.p_t == pytest.approx(theirs.pvalue)
    assert found.p_t == pytest.approx(stats.ttest_1samp(np.subtract(b, a), 0).pvalue)
    half = stats.t.ppf(0.975, 3) * np.std(np.subtract(b, a), ddof=1) / 2
    assert (found.low, found.high) == pytest.approx((2.75 - half, 2.75 + half))
    assert found.p_exact == pytest.approx(0.25)  # 5 + 4.5 + 2 with ±0.5: four of sixteen


def counted_by_hand(differences: Sequence[Fraction]) -> Fraction:
    """Of all choices of signs, the share whose sum is at least as far from 0, without rounding."""
    signs = list(itertools.product((-1, 1), repeat=len(differences)))
    sums = [abs(sum(s * d for s, d in zip(each, differences, strict=True))) for each in signs]
    return Fraction(sum(one >= abs(sum(differences)) for one in sums), len(signs))


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1, 2, 3], 2 / 8),  # only all alike go as far as 6
        ([1, 2, -1], 6 / 8),  # sums 4 2 0 -2 2 0 -2 -4, of which six are at least 2 from 0
        ([-1, -2, -3, -4], 2 / 16),
        ([0, 0], 1.0),
        ([0.1, 0.2, 0.3, -0.3, -0.2, -0.1], 1.0),
    ],
)
def test_the_exact_test_counts_the_signs(differences: list[float], p: float) -> None:
    assert sign_flip_p(differences) == p
    assert counted_by_hand([Fraction(str(d)) for d in differences]) == p


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_the_exact_test_is_that_of_all_sign_choices_to_the_last_digit(n: int) -> None:
    """Accuracies over 18 images: their differences tie in fractions and not in floating point."""
    rng = np.random.default_rng(n)
    for _ in range(20):
        images = [int(i) for i in rng.integers(-6, 7, n)]
        p = counted_by_hand([Fraction(100 * i, 18) for i in images])
        assert sign_flip_p([100 * i / 18 for i in images]) == float(p)


def test_the_exact_test_of_the_most_pairs_reaches_its_least_p() -> None:
    assert sign_flip_p([1.0] * MOST_EXACT) == least_p(MOST_EXACT) == 2 / 2**MOST_EXACT


def test_one_pair_is_a_difference_and_no_test() -> None:
    found = paired_test([50.0], [48.0])
    assert (found.pairs, found.difference) == (1, -2)
    assert (found.low, found.high, found.p_t, found.p_exact) == (None,) * 4


def test_equal_differences_leave_the_t_test_undefined() -> None:
    found = paired_test([1.0, 2.0, 3.0], [1.1, 2.1, 3.1])
    assert (found.low, found.high, found.p_t) == (None, None, None)
    assert found.p_exact == 0.25
    assert paired_test([1.0, 2.0], [1.0, 2.0]).p_exact == 1.0


def test_too_many_pairs_for_all_signs_leave_the_t_test() -> None:
    values = np.random.default_rng(0).normal(size=(2, MOST_EXACT + 1))
    found = paired_test(values[0].tolist(), values[1].tolist())
    assert found.p_exact is None
    assert found.p_t == pytest.approx(stats.ttest_rel(values[1], values[0]).pvalue)
