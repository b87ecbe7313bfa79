"""What a classifier thinks of the labels of photos, whether it has learnt them or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cprompt.classifier import calibration
from cprompt.classifier.classifier import ContinualClassifier
from cprompt.classifier.doubtful_labels import DoubtfulLabel, doubtful
from cprompt.classifier.learning import copy_of, counted_photos
from cprompt.classifier.photos import PhotoLike
from cprompt.device import move, pick_device
from cprompt.training.observers import Observer


@dataclass(frozen=True)
class LabelCheck:
    """Doubtful labels, the worst first; and the labels that the model does not know."""

    doubtful: list[DoubtfulLabel]
    judged: int
    """Photos of classes that the model has learnt; no others can be judged."""
    unknown_labels: list[str]
    without_themselves: bool = True
    """Whether photos that were learnt were judged as if they had not been. If not, wrong labels
    that the model has learnt look right to it."""


def check_labels(
    classifier: ContinualClassifier,
    photos: Sequence[PhotoLike],
    labels: Sequence[str],
    observer: Observer | None = None,
) -> LabelCheck:
    """Look for photos in the wrong class."""
    known = [i for i, label in enumerate(labels) if label in classifier.classes_]
    strange = dict.fromkeys(label for label in labels if label not in classifier.classes_)
    asked, said = [photos[i] for i in known], [labels[i] for i in known]
    found: list[DoubtfulLabel] = []
    can_tell = True
    if known:
        p = probabilities_without_themselves(classifier, asked, said, observer or Observer())
        if p is None:
            can_tell, p = False, classifier.predict_proba(asked)
        found = [
            dataclasses.replace(each, index=known[each.index])
            for each in doubtful(p, classifier.classes_, said)
        ]
    return LabelCheck(found, len(known), list(strange), can_tell)


def probabilities_without_themselves(
    classifier: ContinualClassifier,
    photos: Sequence[PhotoLike],
    labels: Sequence[str],
    observer: Observer,
) -> NDArray[np.float64] | None:
    """(n, classes): of each photo as if it had not been learnt; None if the method cannot tell."""
    names, owners = classifier.classes_, classifier.name_of_
    method, device = copy_of(classifier.method_), pick_device(classifier.device)
    move(method, device)
    move(method.backbone, device)
    position = {names[owner]: at for at, owner in enumerate(owners)}
    logits = method.judge(
        counted_photos(
            classifier,
            method,
            photos,
            [position[label] for label in labels],
            classifier.preparation_,
            observer,
        )
    )
    if logits is None:
        return None
    return calibration.name_probabilities(
        logits.cpu().numpy(),
        np.asarray(owners, dtype=np.int64),
        len(names),
        classifier.temperature_,
    )
