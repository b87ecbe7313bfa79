"""The reasons for an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PhotoParts:
    """How much each part of a photo speaks for a class, compared with all classes on average."""

    label: str
    """The class."""
    window: tuple[float, float, float, float]
    """Left, top, width and height of what the network sees, in parts of the photo's sides."""
    shares: list[list[float]]
    """Row by row, what each part of the window adds to the score of the class."""
    rest: float
    """What no single part adds. All shares and this are the score of the class less the mean."""


@dataclass(frozen=True)
class Explanation:
    """The answer to a photo, and the reasons for it.

    >>> ranking = [("cat", 0.9), ("dog", 0.1)]
    >>> answer = Explanation("cat", 0.9, True, ranking, 1, [("cat", 0.8)], score=4.2)
    >>> answer.label, answer.ranking[1]
    ('cat', ('dog', 0.1))
    """

    label: str
    """The answer; `UNKNOWN` if `known` is false."""
    probability: float
    """Probability of the best name, even if the answer is `UNKNOWN`."""
    known: bool
    ranking: list[tuple[str, float]]
    """The best names with their probabilities."""
    prompt: int | None
    """Number of the batch, from 1, whose prompt was used; None if the method has none per batch."""
    nearest_keys: list[tuple[str, float]]
    """Names whose keys are nearest to the photo's query, with the cosine."""
    score: float
    """The largest logit, before calibration."""
    familiarity: float = 1.0
    """In [0, 1]: how much the photo looks like one of a class learnt; if the method cannot tell,
    the same as `probability`. Below the model's threshold the answer is `UNKNOWN`."""
    parts: PhotoParts | None = None
    """Which parts of the photo spoke for the best name, if asked for and the method can tell."""


def nearest_keys(
    cosines: NDArray[np.floating], owners: Sequence[str], top: int
) -> list[list[tuple[str, float]]]:
    """For each photo, the `top` names with the cosine of their nearest key, best first.

    `cosines` is (n, keys). `owners` is the class name of each key. If there are fewer keys than
    owners, keys are one per batch.
    """
    if len(owners) != cosines.shape[1]:
        owners = [f"batch {number}" for number in range(1, cosines.shape[1] + 1)]
    found = []
    for row in cosines:
        best: dict[str, float] = {}
        for at in np.argsort(-row, kind="stable"):
            best.setdefault(owners[at], float(row[at]))
            if len(best) == top:
                break
        found.append(list(best.items()))
    return found
