"""Calibrated probabilities: temperature, threshold, and measures of how well they are calibrated.

With most methods a name has one position per batch that contained it; the best one speaks for it.
All functions are pure, of logits (n, C) and numbers, and compute in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COLDEST, HOTTEST = 0.01, 100.0
"""The range in which a temperature is searched."""
BINS = 10
"""Bins of equal width in which confidence is compared with accuracy."""


@dataclass(frozen=True)
class Bin:
    """Photos whose top probability is in (low, high]; in [0, high] for the first bin.

    `confidence` is their mean top probability, `accuracy` the share answered right; both are 0
    without photos.
    """

    low: float
    high: float
    photos: int
    confidence: float
    accuracy: float


def name_probabilities(
    logits: NDArray[np.floating], name_of: Ints, n_names: int, temperature: float
) -> Floats:
    """Softmax of the names' best logits / temperature: (n, names).

    `name_of` (C,) is the name of each position of logits (n, C). If probabilities were added up
    over positions, a class would swallow its look-alikes each time it returns. A row does not
    depend on the other rows.
    """
    best = np.full((len(logits), n_names), -np.inf)
    for position, name in enumerate(name_of):
        np.maximum(best[:, name], logits[:, position], out=best[:, name])
    scaled: Floats = best / temperature
    scaled = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    scaled /= scaled.sum(axis=1, keepdims=True)
    return scaled


def negative_log_likelihood(
    logits: NDArray[np.floating], names: Ints, name_of: Ints, n_names: int, temperature: float
) -> float:
    """Mean over photos of the cross-entropy with smoothed targets.

    The target of the true name, `names` (n,), is 1 - 1/(n + 2); the other names share the rest, as
    in Platt scaling. Without smoothing, a few photos that are all answered right would push the
    temperature to its lowest value.
    """
    p = np.log(name_probabilities(logits, name_of, n_names, temperature).clip(min=1e-300))
    right = p[np.arange(len(p)), names]
    if n_names == 1:
        return float(-right.mean())
    doubt = 1 / (len(p) + 2)
    wrong = (p.sum(axis=1) - right) / (n_names - 1)
    return float(-((1 - doubt) * right + doubt * wrong).mean())


def fit_temperature(
    logits: NDArray[np.floating], names: Ints, name_of: Ints, n_names: int
) -> float:
    """The temperature that minimises `negative_log_likelihood`; 1 with fewer than two names.

    A grid search on a log scale, then a bounded search around the best point. Nothing is random,
    and the search does not get stuck in a local minimum that the grid shows to be worse.
    """
    from scipy.optimize import minimize_scalar  # 0.2 s, needed for learning only

    if n_names < 2:
        return 1.0

    def loss(log_t: float) -> float:
        return negative_log_likelihood(logits, names, name_of, n_names, math.exp(log_t))

    grid = np.linspace(math.log(COLDEST), math.log(HOTTEST), 41)
    best = int(np.argmin([loss(at) for at in grid]))
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(loss, bounds=around, method="bounded", options={"xatol": 1e-4})
    return math.exp(found.x)


def fit_threshold(top: Floats, accept: float) -> float:
    """The largest threshold that accepts at least the share `accept` of the photos.

    `top` (n,) are their top probabilities. The threshold is their (1 - accept) quantile, rounded
    down to one of them.
    """
    return float(np.quantile(top, 1 - accept, method="lower"))


def reliability(top: Floats, right: NDArray[np.bool_], bins: int = BINS) -> list[Bin]:
    """Confidence against accuracy, in bins of equal width over [0, 1]; all bins, empty ones too."""
    at = (np.ceil(top * bins).astype(np.int64) - 1).clip(0, bins - 1)
    found = []
    for i in range(bins):
        inside = at == i
        n = int(inside.sum())
        confidence = float(top[inside].mean()) if n else 0.0
        accuracy = float(right[inside].mean()) if n else 0.0
        found.append(Bin(i / bins, (i + 1) / bins, n, confidence, accuracy))
    return found


def expected_calibration_error(bins: Sequence[Bin]) -> float:
    """Σ (photos in bin / photos) |accuracy - confidence|; 0 without photos."""
    photos = sum(b.photos for b in bins)
    gaps = sum(b.photos * abs(b.accuracy - b.confidence) for b in bins)
    return gaps / photos if photos else 0.0
