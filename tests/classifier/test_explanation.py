"""Explanations of answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from cprompt import UNKNOWN
from cprompt.classifier.explanation import nearest_keys
from tests.classifier.common import batch, learnt


def test_an_explanation_says_what_the_answer_rests_on() -> None:
    classifier = learnt({"red": 8, "sea": 8}, {"moss": 8, "red": 6}, {"sun": 8})
    new, truth = batch(5, red=4, sea=4, moss=4, sun=4)
    p, answers = classifier.predict_proba(new), classifier.predict(new)
    state = classifier._state
    assert state is not None
    for row, answer, name, photo in zip(p, answers, truth, new, strict=True):
        (found,) = classifier.explain(photo, top=2)
        if abs(row.max() - classifier.threshold_) > 1e-3:
            assert found.label == answer
        assert found.known == (found.label != UNKNOWN)
        assert found.probability == pytest.approx(row.max(), rel=1e-3)
        best = np.argsort(-row)[:2]
        assert [n for n, _ in found.ranking] == [classifier.classes_[i] for i in best]
        assert [q for _, q in found.ranking] == pytest.approx(row[best].tolist(), rel=1e-2)
        assert len(found.nearest_keys) == 2
        assert len({n for n, _ in found.nearest_keys}) == 2
        cosines = [c for _, c in found.nearest_keys]
        assert cosines == sorted(cosines, reverse=True)
        assert all(-1 <= c <= 1 for c in cosines)
        assert found.nearest_keys[0][0] == name
        came_with = {"red": (1, 2), "sea": (1,), "moss": (2,), "sun": (3,)}
        assert found.prompt in came_with[name]
        with torch.no_grad():
            image = classifier.preparation_.prepare(Image.fromarray(photo))
            assert found.score == pytest.approx(float(state.method(image[None]).max()), rel=1e-3)


def test_the_nearest_key_of_each_name_counts() -> None:
    cosines = np.array([[0.1, 0.9, 0.4, 0.7], [0.5, 0.5, -0.2, 0.3]])
    owners = ["red", "sea", "moss", "sea"]
    assert nearest_keys(cosines, owners, top=2) == [
        [("sea", 0.9), ("moss", 0.4)],
        [("red", 0.5), ("sea", 0.5)],
    ]


def test_with_fewer_keys_than_owners_they_are_one_per_batch() -> None:
    found = nearest_keys(np.array([[0.1, 0.9]]), ["red", "sea", "moss"], top=5)
    assert found == [[("batch 2", 0.9), ("batch 1", 0.1)]]
