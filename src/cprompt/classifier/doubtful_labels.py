"""Photos that are probably in the wrong class, by what the model says of each without itself.

A model that has learnt a wrong label agrees with it a little. So a photo that was learnt is judged
as if it had not been; see `cprompt.methods.base.Method.judge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cprompt.classifier.batch_checks import photo_name
from cprompt.classifier.photos import PhotoLike
from cprompt.errors import counted, some
from cprompt.training.observers import Observer

ODDS = 100.0
"""How many times more probable than the label another class must be."""
NAMED = 3
"""Photos that are named while learning."""


@dataclass(frozen=True)
class DoubtfulLabel:
    """A photo that another class than its own fits far better."""

    index: int
    """Its place in the list of photos."""
    label: str
    probability: float
    """Of the label."""
    other: str
    """The most probable class."""
    other_probability: float


def doubtful(
    probabilities: NDArray[np.float64], names: Sequence[str], labels: Sequence[str]
) -> list[DoubtfulLabel]:
    """Photos whose label is `ODDS` times less probable than another class; the worst first.

    `probabilities` are (n, names). Every label is one of `names`.

    >>> found = doubtful(np.array([[0.995, 0.005], [0.6, 0.4]]), ["cat", "dog"], ["dog", "dog"])
    >>> [(each.index, each.label, each.other) for each in found]
    [(0, 'dog', 'cat')]
    """
    column = {name: at for at, name in enumerate(names)}
    own = probabilities[np.arange(len(labels)), [column[label] for label in labels]]
    best = probabilities.argmax(axis=1)
    top = probabilities[np.arange(len(labels)), best]
    return [
        DoubtfulLabel(int(i), labels[i], float(own[i]), names[best[i]], float(top[i]))
        for i in np.argsort(own, kind="stable")
        if top[i] >= ODDS * own[i]
    ]


def notice_doubtful(
    probabilities: NDArray[np.float64],
    names: Sequence[str],
    labels: Sequence[str],
    photos: Sequence[PhotoLike],
    observer: Observer,
) -> None:
    """Tell `observer` of doubtful labels, naming the worst."""
    found = doubtful(probabilities, names, labels)
    if found:
        shown = [f"{photo_name(photos, d.index)} looks like {d.other}" for d in found]
        observer.noticed(
            f"{counted(len(found), 'photo')} may be in the wrong class: {some(shown, NAMED)}; "
            "`cprompt doctor PHOTOS --model MODEL` lists all"
        )
