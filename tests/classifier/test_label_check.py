"""What a classifier thinks of labels: photos it has learnt are judged without themselves."""

from __future__ import annotations

import numpy as np
import pytest

from cprompt import Observer
from cprompt.classifier import learning
from cprompt.classifier.doubtful_labels import doubtful
from cprompt.classifier.label_check import check_labels, probabilities_without_themselves
from tests.classifier.common import batch, learnt, photos, tiny


def test_a_learnt_photo_in_the_wrong_class_is_found_and_no_other() -> None:
    images, labels = batch(0, red=12, green=12, blue=12)
    images += [photos("green", 1, seed=5)[0], photos("grey", 1)[0]]
    labels += ["red", "never learnt"]
    classifier = tiny().learn(images[:-1], labels[:-1])
    found = check_labels(classifier, images, labels)
    assert [(each.index, each.label, each.other) for each in found.doubtful] == [
        (36, "red", "green")
    ]
    assert found.judged == 37
    assert found.unknown_labels == ["never learnt"]


def test_photos_that_were_not_learnt_are_answered_as_always() -> None:
    classifier = learnt({"red": 8, "green": 8, "blue": 8})
    images, labels = batch(9, green=3, red=3)
    found = probabilities_without_themselves(classifier, images, labels, Observer())
    assert found == pytest.approx(classifier.predict_proba(images), abs=0.02)  # float16 features


def test_a_photo_that_was_learnt_is_judged_as_if_it_were_not() -> None:
    """Compared with a model that has really learnt all photos but this one."""
    images, labels = batch(0, red=4, green=4, blue=4)
    images.append(photos("green", 1, seed=5)[0])
    labels.append("red")
    classifier = tiny().learn(images, labels)
    whole = probabilities_without_themselves(classifier, images, labels, Observer())
    assert whole is not None
    judged = whole[-1]
    plain = classifier.predict_proba(images[-1])[0]
    without = tiny().learn(images[:-1], labels[:-1]).predict_proba(images[-1])[0]
    own = [np.log(p[classifier.classes_.index("red")]) for p in (judged, plain, without)]
    # How heads are weighted differs from model to model, so not exactly the same.
    assert own[0] == pytest.approx(own[2], abs=0.5 * (own[1] - own[2])), own
    assert own[0] < own[1] - 1


def test_the_judgement_while_learning_is_that_of_the_photos_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Learning keeps features of its batch for a moment; later the photos are looked at again."""
    judged: list[np.ndarray] = []
    monkeypatch.setattr(learning, "notice_doubtful", lambda p, *_: judged.append(p))
    images, labels = batch(0, red=7, green=7, blue=7)
    classifier = tiny().learn(images, labels)
    again = probabilities_without_themselves(classifier, images, labels, Observer())
    assert judged[0] == pytest.approx(again, rel=1e-4)
    assert classifier.method_.judge() is None  # nothing of the photos is kept


def test_a_method_that_cannot_judge_answers_as_always() -> None:
    classifier = learnt({"red": 6, "green": 6}, method="nearest_mean", training=None)
    images, labels = batch(0, red=6, green=6)
    found = check_labels(classifier, images, labels)
    assert found.doubtful == doubtful(classifier.predict_proba(images), classifier.classes_, labels)
    assert not found.without_themselves


def test_a_model_that_keeps_no_features_says_that_it_cannot_tell() -> None:
    images, labels = batch(0, red=12, green=12, blue=12)
    images.append(photos("green", 1, seed=5)[0])
    labels.append("red")
    assert not check_labels(tiny(keep_held_out=0).learn(images, labels), images, labels).doubtful
    # Two or more per class are kept, so 6 images; the heads are weighed by 10 or more.
    for keep, can_tell in ((0, False), (1, False), (6, False), (10, True), (50, True)):
        classifier = tiny(settings={"keep": keep}).learn(images, labels)
        assert check_labels(classifier, images, labels).without_themselves == can_tell


@pytest.mark.parametrize("keep", [0, 1, 10])
def test_learning_warns_of_no_wrong_label_where_it_cannot_tell(
    keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[np.ndarray] = []
    monkeypatch.setattr(learning, "notice_doubtful", lambda p, *_: judged.append(p))
    classifier = learnt({"red": 9, "green": 9, "blue": 9}, settings={"keep": keep})
    assert len(judged) == (keep == 10)
    unseen = probabilities_without_themselves(classifier, *batch(9, red=3), Observer())
    assert (unseen is None) == (keep == 0)  # none of these was learnt, so none is left out


def test_without_photos_of_known_classes_nothing_is_judged() -> None:
    classifier = learnt({"red": 3, "green": 3})
    found = check_labels(classifier, photos("blue", 2), ["blue", "blue"])
    assert (found.doubtful, found.judged, found.unknown_labels) == ([], 0, ["blue"])
