"""Photos that cannot be read do not keep the others from an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from cprompt.classifier import readable
from cprompt.classifier.explanation import Explanation
from cprompt.classifier.readable import explain_readable
from cprompt.errors import DataError
from tests.classifier.common import learnt, photos, saved


def test_readable_photos_get_the_same_answers_as_without_the_bad_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readable, "DECODED_AT_ONCE", 2)  # so that a part may have none to answer
    classifier = learnt({"red": 4, "blue": 4})
    big = [each.repeat(9, 0).repeat(7, 1) for each in photos("red", 3, seed=5)]
    good = [saved(tmp_path / f"{i}.png", each) for i, each in enumerate(big)]
    (tmp_path / "empty.png").touch()
    bad = [tmp_path / "absent.png", tmp_path / "empty.png"]
    seen: list[tuple[int, int]] = []
    found = explain_readable(
        classifier,
        [good[0], *bad, bad[0], good[1], good[2]],
        top=2,
        progress=lambda done, total: seen.append((done, total)),
    )
    answered = [each for each in found if isinstance(each, Explanation)]
    assert answered == [found[0], *found[4:]]
    for answer, alone in zip(answered, classifier.explain(good, top=2), strict=True):
        assert answer.label == alone.label
        assert answer.score == pytest.approx(alone.score)
    errors = [each for each in found if isinstance(each, DataError)]
    assert [error.file for error in errors] == [str(bad[0]), str(bad[1]), str(bad[0])]
    assert seen == [(n, 6) for n in range(1, 7)]
