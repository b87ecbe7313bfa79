"""Evaluation on labelled photos: counts per class and per batch, confusion, calibration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    right_forced: int = 0
    """Photos whose best name is right, whether it was the answer or `UNKNOWN` was."""

    @property
    def accuracy(self) -> float | None:
        """Share answered right; `UNKNOWN` counts as wrong. None without photos."""
        return self.right / self.photos if self.photos else None

    @property
    def accuracy_forced(self) -> float | None:
        """Share right if every photo is given its best name. None without photos."""
        return self.right_forced / self.photos if self.photos else None

    def __add__(self, other: ClassResult) -> ClassResult:
        return ClassResult(
            self.photos + other.photos,
            self.right + other.right,
            self.unknown + other.unknown,
            self.right_forced + other.right_forced,
        )


@dataclass(frozen=True)
class PhotoAnswer:
    """How one photo was answered."""

    truth: str
    learnt: bool
    """Whether its class was ever learnt."""
    label: str
    """The answer: the best name, or `UNKNOWN`."""
    best: str
    probability: float
    """Of the best name."""

    @property
    def right(self) -> bool:
        """Whether the answer is the truth; for a class never learnt, whether it is `UNKNOWN`."""
        return self.label == (self.truth if self.learnt else UNKNOWN)


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
    >>> sure = np.array([True, True])
    >>> found = assess(p, ["cat", "dog"], {"cat": 1, "dog": 1}, sure, truth=["cat", "cat"])
    >>> found.accuracy, found.per_class["cat"].right
    (0.5, 1)
    """

    photos: int
    accuracy: float | None
    """Share right; `UNKNOWN` counts as wrong. None without photos of a learnt class."""
    accuracy_forced: float | None
    """Share right if every photo is given its best name, never `UNKNOWN`."""
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
    answers: list[PhotoAnswer] = field(repr=False)
    """One per photo, in the order given."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON, without the answers to single photos."""
        plain = dataclasses.asdict(dataclasses.replace(self, answers=[]))
        del plain["answers"]
        plain["per_batch"] = {str(k): v for k, v in plain["per_batch"].items()}
        return plain


def assess(
    p: NDArray[np.float64],
    names: Sequence[str],
    first_batch: Mapping[str, int],
    sure: NDArray[np.bool_],
    truth: Sequence[str],
) -> Evaluation:
    """Compare probabilities (n, names) with the photos' true names, `truth` (n,).

    `first_batch` is the number of the batch in which each name first appeared. A photo that is
    not `sure` (n,) counts as answered `UNKNOWN`.
    """
    index = {name: i for i, name in enumerate(names)}
    target = np.array([index.get(name, -1) for name in truth], dtype=np.int64)
    top = p.max(axis=1, initial=0.0)
    best = p.argmax(axis=1)
    seen = target >= 0
    right = seen & (best == target)

    def result(which: NDArray[np.bool_]) -> ClassResult:
        sums = (which, which & right & sure, which & ~sure, which & right)
        return ClassResult(*(int(each.sum()) for each in sums))

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
        accuracy_forced=known.accuracy_forced,
        accuracy_if_answered=known.right / answered if answered else None,
        unknown_share=known.unknown / known.photos if known.photos else None,
        per_class=per_class,
        per_batch=per_batch,
        confusion=_confusion(names, truth, np.where(sure, best, len(names))),
        ece=calibration.expected_calibration_error(bins),
        bins=bins,
        unseen=result(~seen),
        answers=[
            PhotoAnswer(
                truth=name,
                learnt=bool(seen[i]),
                label=names[best[i]] if sure[i] else UNKNOWN,
                best=names[best[i]],
                probability=float(top[i]),
            )
            for i, name in enumerate(truth)
        ],
    )


def _confusion(names: Sequence[str], truth: Sequence[str], answer: NDArray[np.int64]) -> Confusion:
    rows = [*names, *sorted(set(truth) - set(names))]
    index = {name: i for i, name in enumerate(rows)}
    counts = np.zeros((len(rows), len(names) + 1), dtype=np.int64)
    np.add.at(counts, (np.array([index[name] for name in truth], dtype=np.int64), answer), 1)
    return Confusion(rows, [*names, UNKNOWN], counts.tolist())
