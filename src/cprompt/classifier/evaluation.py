"""Evaluation on labelled photos: counts per class and per batch, confusion, calibration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cprompt.classifier import calibration
from cprompt.classifier.calibration import Bin
from cprompt.classifier.photo_sources import UNKNOWN


@dataclass(frozen=True)
class ClassResult:
    """Counts of photos of one or more classes, and of how they were answered.

    >>> (ClassResult(photos=4, right=3) + ClassResult(photos=4, right=2, unknown=1)).accuracy
    0.625
    """

    photos: int = 0
    right: int = 0
    unknown: int = 0

    @property
    def accuracy(self) -> float | None:
        """Share answered right; `UNKNOWN` counts as wrong. None without photos."""
        return self.right / self.photos if self.photos else None

    def __add__(self, other: ClassResult) -> ClassResult:
        return ClassResult(
            self.photos + other.photos, self.right + other.right, self.unknown + other.unknown
        )


@dataclass(frozen=True)
class Confusion:
    """`counts[i][j]`: photos of `truth[i]` answered `answer[j]`; the last answer is `UNKNOWN`."""

    truth: list[str]
    answer: list[str]
    counts: list[list[int]]


@dataclass(frozen=True)
class Evaluation:
    """How labelled photos were answered. Photos of classes never learnt count in `unseen` only.

    >>> p = np.array([[0.9, 0.1], [0.3, 0.7]])  # two photos, two names
    >>> found = assess(p, ["cat", "dog"], {"cat": 1, "dog": 1}, 0.0, truth=["cat", "cat"])
    >>> found.accuracy, found.per_class["cat"].right
    (0.5, 1)
    """

    photos: int
    accuracy: float | None
    """Share right; `UNKNOWN` counts as wrong. None without photos of a learnt class."""
    accuracy_if_answered: float | None
    """Share right of those not answered `UNKNOWN`; None if there are none."""
    unknown_share: float | None
    per_class: dict[str, ClassResult]
    per_batch: dict[int, ClassResult]
    """By the number of the batch in which a class first appeared."""
    confusion: Confusion
    ece: float
    bins: list[Bin]
    unseen: ClassResult
    """Photos of classes never learnt: `right` is 0, `unknown` counts the appropriate answers."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = dataclasses.asdict(self)
        plain["per_batch"] = {str(k): v for k, v in plain["per_batch"].items()}
        return plain


def assess(
    p: NDArray[np.float64],
    names: Sequence[str],
    first_batch: Mapping[str, int],
    threshold: float,
    truth: Sequence[str],
) -> Evaluation:
    """Compare probabilities (n, names) with the photos' true names, `truth` (n,).

    `first_batch` is the number of the batch in which each name first appeared. A photo whose best
    name has a probability below `threshold` counts as answered `UNKNOWN`.
    """
    index = {name: i for i, name in enumerate(names)}
    target = np.array([index.get(name, -1) for name in truth], dtype=np.int64)
    top = p.max(axis=1, initial=0.0)
    best = p.argmax(axis=1)
    sure = top >= threshold
    seen = target >= 0
    right = seen & (best == target)

    def result(which: NDArray[np.bool_]) -> ClassResult:
        return ClassResult(
            int(which.sum()), int((which & right & sure).sum()), int((which & ~sure).sum())
        )

    known = result(seen)
    answered = known.photos - known.unknown
    per_class = {name: result(target == i) for i, name in enumerate(names)}
    per_batch = {number: ClassResult() for number in sorted(set(first_batch.values()))}
    for name, counted in per_class.items():
        per_batch[first_batch[name]] += counted
    bins = calibration.reliability(top[seen], right[seen])
    return Evaluation(
        photos=len(truth),
        accuracy=known.accuracy,
        accuracy_if_answered=known.right / answered if answered else None,
        unknown_share=known.unknown / known.photos if known.photos else None,
        per_class=per_class,
        per_batch=per_batch,
        confusion=_confusion(names, truth, np.where(sure, best, len(names))),
        ece=calibration.expected_calibration_error(bins),
        bins=bins,
        unseen=result(~seen),
    )


def _confusion(names: Sequence[str], truth: Sequence[str], answer: NDArray[np.int64]) -> Confusion:
    rows = [*names, *sorted(set(truth) - set(names))]
    index = {name: i for i, name in enumerate(rows)}
    counts = np.zeros((len(rows), len(names) + 1), dtype=np.int64)
    np.add.at(counts, (np.array([index[name] for name in truth], dtype=np.int64), answer), 1)
    return Confusion(rows, [*names, UNKNOWN], counts.tolist())
