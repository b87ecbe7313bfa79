"""Explanations of answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from cprompt import UNKNOWN
from cprompt.classifier.explanation import nearest_keys
from tests.classifier.common import batch, learnt

SMALL = {"length": 2}


def test_an_explanation_says_what_the_answer_rests_on() -> None:
    classifier = learnt(
        {"red": 8, "sea": 8}, {"moss": 8, "red": 6}, {"sun": 8}, method="cprompt", settings=SMALL
    )
    new, _ = batch(5, red=4, sea=4, moss=4, sun=4)
    p, answers = classifier.predict_proba(new), classifier.predict(new)
    state = classifier._state
    assert state is not None
    for row, answer, photo in zip(p, answers, new, strict=True):
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
        assert found.nearest_keys[0][0] in classifier.classes_
        assert found.prompt in (1, 2, 3)
        assert found.familiarity == found.probability  # the method cannot tell them apart
        with torch.no_grad():
            image = classifier.preparation_.prepare(Image.fromarray(photo))
            assert found.score == pytest.approx(float(state.method(image[None]).max()), rel=1e-3)


def test_a_closed_form_says_how_familiar_a_photo_looks() -> None:
    classifier = learnt({"red": 8, "sea": 8}, {"moss": 8, "red": 6}, {"sun": 8})
    new, _ = batch(5, red=4, sea=4, moss=4, sun=4)
    found = classifier.explain(new)
    assert [each.label for each in found] == classifier.predict(new)
    for each in found:
        assert each.known == (each.familiarity >= classifier.threshold_)
        assert (each.prompt, each.nearest_keys) == (None, [])
    with torch.no_grad():
        prepared = [classifier.preparation_.prepare(Image.fromarray(photo)) for photo in new]
        familiar = classifier.method_.respond(torch.stack(prepared)).familiar
    assert familiar is not None
    assert [each.familiarity for each in found] == pytest.approx(familiar.tolist(), abs=1e-5)


def test_parts_of_a_photo_and_the_rest_are_the_score_of_the_best_name() -> None:
    classifier = learnt({"red": 8, "sea": 8}, {"moss": 8, "red": 6})
    new, _ = batch(5, red=2, sea=2)
    wide = np.concatenate([new[0], new[2]], axis=1)  # red on the left, sea on the right
    method = classifier.method_
    for photo in (*new, wide):
        (found,) = classifier.explain(photo, parts=True)
        assert found.parts is not None
        assert found.parts.label == found.ranking[0][0]
        assert np.shape(found.parts.shares) == method.backbone.grid
        with torch.no_grad():
            logits = method(classifier.preparation_.prepare(Image.fromarray(photo))[None])[0]
        assert np.sum(found.parts.shares) + found.parts.rest == pytest.approx(
            float(logits.max() - logits.mean()), abs=1e-3
        )
    assert found.parts is not None
    assert found.parts.window == (0.25, 0.0, 0.5, 1.0)  # the central square
    assert classifier.explain(new[0])[0].parts is None


def test_a_method_that_cannot_tell_names_no_parts() -> None:
    classifier = learnt({"red": 8, "sea": 8}, method="cprompt", settings=SMALL)
    assert classifier.explain(batch(5, red=1)[0], parts=True)[0].parts is None


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
