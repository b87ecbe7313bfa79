"""Which photos to label next: those that the model is unsure of, each unlike the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cprompt.classifier.classifier import ContinualClassifier
from cprompt.classifier.readable import read_in_parts
from cprompt.data.near_duplicates import MOST, Look, look, look_alikes
from cprompt.data.pipeline.decoded import Progress
from cprompt.errors import ConfigError, DataError

ROUNDS = 10
"""Rounds of k-means; the choice hardly changes after these."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Suggestion:
    """A photo to label, and what the model answers now."""

    index: int
    """Its place in the list of photos."""
    label: str
    """The present answer; may be `UNKNOWN`."""
    best: str
    """The most probable name."""
    probability: float
    """Of `best`."""
    familiarity: float
    """See `Explanation.familiarity`."""
    doubt: float
    """See `doubts`."""


@dataclass(frozen=True)
class Suggestions:
    """The photos to label, the most doubtful first; and what was left out of the choice."""

    chosen: list[Suggestion]
    unreadable: list[DataError]
    repeated: int
    """Photos that look the same as another one."""


def suggest(
    classifier: ContinualClassifier,
    files: Sequence[str | Path],
    count: int,
    progress: Progress | None = None,
) -> Suggestions:
    """At most `count` of the photos, whose labels would help most. The same list, the same choice.

    Of photos that look the same only one is considered; see `look_alikes`. Photos that cannot be
    read are left out.
    """
    if count < 1:
        raise ConfigError(f"{count} photos cannot be suggested", hint="ask for one or more")
    names = classifier.classes_
    column = {name: at for at, name in enumerate(names)}
    readable: list[int] = []
    unreadable: list[DataError] = []
    answers: list[tuple[str, float]] = []
    rows: list[Floats] = []
    looks: list[Look] = []
    first = 0
    for part in read_in_parts(classifier, files, progress):
        images = [each for each in part if not isinstance(each, DataError)]
        readable += [first + i for i, each in enumerate(part) if not isinstance(each, DataError)]
        unreadable += [each for each in part if isinstance(each, DataError)]
        first += len(part)
        looks += [look(Image.fromarray(image)) for image in images]
        for found in classifier.explain(images, len(names)) if images else []:
            row = np.zeros(len(names))
            row[[column[name] for name, _ in found.ranking]] = [p for _, p in found.ranking]
            rows.append(row)
            answers.append((found.label, found.familiarity))
    if not readable:
        return Suggestions([], unreadable, 0)
    p, familiar = np.stack(rows), np.array([familiarity for _, familiarity in answers])
    alike = look_alikes(np.stack(looks)) if len(looks) <= MOST else []
    others = {i for group in alike for i in group[1:]}
    considered = np.array([i for i in range(len(readable)) if i not in others])
    doubt = doubts(p, familiar)
    chosen = considered[choose(p[considered], doubt[considered], count)]
    found_ = [
        Suggestion(
            index=readable[i],
            label=answers[i][0],
            best=names[int(p[i].argmax())],
            probability=float(p[i].max()),
            familiarity=float(familiar[i]),
            doubt=float(doubt[i]),
        )
        for i in sorted(chosen.tolist(), key=lambda i: (-doubt[i], i))
    ]
    return Suggestions(found_, unreadable, len(others))


def doubts(probabilities: Floats, familiarity: Floats) -> Floats:
    """How little the model can be sure of each photo (n,), from 0 to 1.

    d = 1 - f · (p₁ - p₂), with p₁ and p₂ the two largest of its probabilities (n, classes) and f
    its familiarity (n,): 0 only if the photo looks like a known class and the best name is far
    ahead of the next.

    >>> doubts(np.array([[0.9, 0.1], [0.5, 0.5], [0.9, 0.1]]), np.array([1.0, 1.0, 0.0])).round(2)
    array([0.2, 1. , 1. ])
    """
    ahead = probabilities.max(axis=1)
    if probabilities.shape[1] > 1:
        ahead = ahead - np.partition(probabilities, -2, axis=1)[:, -2]
    return np.asarray(1 - familiarity * ahead)


def choose(probabilities: Floats, doubt: Floats, count: int) -> NDArray[np.int64]:
    """Indices of at most `count` photos that are doubtful, each in another way.

    k-means on the square roots of the probabilities (n, classes), where the distance of two photos
    is Hellinger's, finds `count` kinds of answers; photos count as much as their `doubt` (n,). Of
    each kind the photo nearest to its centre is taken, so that it stands for others. Choosing the
    most doubtful photos alone would find odd ones, which stand for nothing.
    """
    n = len(doubt)
    if n <= count:
        return np.arange(n)
    points, weights = np.sqrt(probabilities), np.maximum(doubt, 1e-9)
    rng = np.random.default_rng(0)
    centres = points[rng.choice(n, count, replace=False, p=weights / weights.sum())]
    for _ in range(ROUNDS):
        nearest, _ = _nearest(points, centres)
        total = np.bincount(nearest, weights, minlength=count)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, points * weights[:, None])
        there = total > 0
        centres[there] = sums[there] / total[there, None]
    nearest, distance = _nearest(points, centres)
    order = np.argsort(distance, kind="stable")
    kinds, at = np.unique(nearest[order], return_index=True)
    chosen = order[at]
    if len(kinds) < count:  # equal photos: the most doubtful of the rest
        rest = np.setdiff1d(np.argsort(-doubt, kind="stable"), chosen, assume_unique=True)
        chosen = np.concatenate([chosen, rest[: count - len(kinds)]])
    return chosen


def _nearest(
    points: Floats, centres: Floats, at_once: int = 4096
) -> tuple[NDArray[np.int64], Floats]:
    """For each point, the index of the nearest centre and the squared distance to it."""
    half = 0.5 * (centres**2).sum(axis=1)
    found, least = [], []
    for first in range(0, len(points), at_once):
        scores = half - points[first : first + at_once] @ centres.T
        at = scores.argmin(axis=1)
        found.append(at)
        least.append(2 * scores[np.arange(len(at)), at])
    return np.concatenate(found), np.concatenate(least) + (points**2).sum(axis=1)
