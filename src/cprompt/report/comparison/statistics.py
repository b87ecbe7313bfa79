"""Tests of paired values: is the difference between A and B more than chance?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
MOST_EXACT = 14
"""Most pairs for the exact test, which enumerates all signs: 2^14 take a tenth of a second."""
DIGITS = 9
"""Sums are rounded to this many decimals, so that equal ones tie in spite of floating point."""


@dataclass(frozen=True)
class PairedTest:
    """What the differences B - A of n pairs say; None where it cannot be said.

    low, high: 95 % interval of the mean difference under Student's t. p_t: two-sided paired
    t-test. p_exact: two-sided sign-flip test, which assumes only that A and B could be swapped
    within a pair.
    """

    pairs: int
    difference: float
    low: float | None = None
    high: float | None = None
    p_t: float | None = None
    p_exact: float | None = None


def paired_test(a: Sequence[float], b: Sequence[float]) -> PairedTest:
    """B against A, value by value; with one pair there is only its difference.

    The t-test is left out where all differences are the same: their variance is 0.
    """
    differences = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    n, mean = len(differences), float(differences.mean())
    if n < 2:
        return PairedTest(n, mean)
    exact = sign_flip_p(differences) if n <= MOST_EXACT else None
    if np.ptp(differences) <= 1e-12 * max(1.0, float(np.abs(differences).max())):
        return PairedTest(n, mean, p_exact=exact)
    from scipy import stats

    found = stats.ttest_rel(b, a)
    interval = found.confidence_interval(CONFIDENCE)
    return PairedTest(
        n, mean, float(interval.low), float(interval.high), float(found.pvalue), exact
    )


def sign_flip_p(differences: Sequence[float] | NDArray[np.float64]) -> float:
    """Share of all 2^n choices of signs whose sum is at least as far from 0 as the one found.

    Needs at least two differences. Flipping a difference's sign swaps A and B within that pair.
    """
    from scipy import stats

    found = stats.permutation_test(
        (np.asarray(differences, dtype=np.float64),),
        _rounded_sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
        batch=2**12,
    )
    return float(found.pvalue)


def least_p(pairs: int) -> float:
    """The smallest p that `sign_flip_p` can give: two of 2^n choices."""
    return 2.0 ** (1 - pairs)


def _rounded_sum(values: NDArray[np.float64], axis: int) -> Any:
    return np.round(np.sum(values, axis=axis), DIGITS)
