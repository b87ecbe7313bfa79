"""Counts against what `predict` answers, and by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cprompt import UNKNOWN
from cprompt.classifier.evaluation import ClassResult, assess
from tests.classifier.common import batch, learnt


def test_an_evaluation_counts_what_predict_says() -> None:
    classifier = learnt({"red": 12, "sea": 12}, {"moss": 12, "red": 8}, {"sun": 12}, accept=0.9)
    new, truth = batch(5, red=9, sea=9, moss=9, sun=9, pink=6, teal=5)
    rng = np.random.default_rng(0)
    new = [np.clip(p.astype(int) + rng.integers(-40, 40, 3), 0, 255).astype(np.uint8) for p in new]
    result = classifier.evaluate(new, truth)
    answers, p = classifier.predict(new), classifier.predict_proba(new)
    seen = [i for i, name in enumerate(truth) if name in classifier.classes_]
    right = [i for i in seen if answers[i] == truth[i]]
    unknown = [i for i in seen if answers[i] == UNKNOWN]
    assert 0 < len(unknown) < len(seen)
    assert result.photos == 47
    assert result.accuracy == len(right) / 36
    assert result.accuracy_if_answered == len(right) / (36 - len(unknown))
    assert result.unknown_share == len(unknown) / 36
    best = classifier.predict(new, unknown=False)
    forced = [i for i in seen if best[i] == truth[i]]
    assert len(seen) > len(forced) > len(right)
    assert result.accuracy_forced == len(forced) / 36
    assert [a.label for a in result.answers] == answers
    assert [a.best for a in result.answers] == best
    assert [a.truth for a in result.answers] == truth
    assert [a.probability for a in result.answers] == p.max(axis=1).tolist()
    for name in classifier.classes_:
        assert result.per_class[name] == ClassResult(
            9,
            sum(truth[i] == name for i in right),
            sum(truth[i] == name for i in unknown),
            sum(truth[i] == name for i in forced),
        )
    by_batch = {1: ("red", "sea"), 2: ("moss",), 3: ("sun",)}
    assert result.per_batch == {
        number: sum((result.per_class[n] for n in names), ClassResult())
        for number, names in by_batch.items()
    }
    assert result.unseen.photos == 11
    assert result.unseen.unknown == sum(
        a == UNKNOWN for a, t in zip(answers, truth, strict=True) if t in ("pink", "teal")
    )
    confusion = result.confusion
    assert confusion.truth == ["red", "sea", "moss", "sun", "pink", "teal"]
    assert confusion.answer == ["red", "sea", "moss", "sun", UNKNOWN]
    for i, t in enumerate(confusion.truth):
        for j, a in enumerate(confusion.answer):
            both = sum(x == t and y == a for x, y in zip(truth, answers, strict=True))
            assert confusion.counts[i][j] == both
    # Expected calibration error, bin by bin, of the seen photos' best names.
    error = 0.0
    for low in range(10):
        inside = [i for i in seen if low / 10 < p[i].max() <= (low + 1) / 10]
        if inside:
            sure = np.mean([p[i].max() for i in inside])
            hits = np.mean([classifier.classes_[int(p[i].argmax())] == truth[i] for i in inside])
            error += len(inside) / 36 * abs(sure - hits)
    assert result.ece == pytest.approx(error)
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["per_class"]["red"]["photos"] == 9
    assert plain["per_batch"]["2"]["photos"] == 9


def test_an_evaluation_of_unseen_classes_alone_has_no_accuracy() -> None:
    result = learnt({"red": 3, "sea": 3}, keep_held_out=0).evaluate(*batch(1, pink=4))
    assert (result.accuracy, result.accuracy_if_answered, result.unknown_share) == (None,) * 3
    assert result.accuracy_forced is None
    assert result.unseen == ClassResult(4, 0, 0)
    assert result.ece == 0.0


def test_counts_worked_by_hand() -> None:
    p = np.array([[0.9, 0.1], [0.3, 0.7], [0.55, 0.45], [0.2, 0.8], [0.6, 0.4]])
    truth = ["cat", "cat", "cat", "dog", "elk"]
    found = assess(p, ["cat", "dog"], {"cat": 1, "dog": 2}, p.max(axis=1) >= 0.58, truth)
    assert found.per_class == {"cat": ClassResult(3, 1, 1, 2), "dog": ClassResult(1, 1, 0, 1)}
    assert found.per_batch == {1: ClassResult(3, 1, 1, 2), 2: ClassResult(1, 1, 0, 1)}
    assert (found.accuracy, found.accuracy_if_answered) == (2 / 4, 2 / 3)
    assert (found.accuracy_forced, found.unknown_share) == (3 / 4, 1 / 4)
    assert [answer.right for answer in found.answers] == [True, False, False, True, False]
    assert "answers" not in found.to_dict()
    assert found.unseen == ClassResult(1, 0, 0)
    assert found.confusion.truth == ["cat", "dog", "elk"]
    assert found.confusion.counts == [[1, 1, 1], [0, 1, 0], [1, 0, 0]]


def test_unknown_is_the_right_answer_for_a_class_never_learnt() -> None:
    p, unsure = np.array([[0.5, 0.5]]), np.array([False])
    found = assess(p, ["cat", "dog"], {"cat": 1, "dog": 1}, unsure, ["elk"])
    assert found.answers[0].right
