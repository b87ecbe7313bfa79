"""Photos that cannot be read do not keep the others from an answer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cprompt.classifier import readable
from cprompt.classifier.explanation import Explanation
from cprompt.classifier.readable import evaluate_readable, explain_readable, learn_readable
from cprompt.data.pipeline.processes import SETTING
from cprompt.errors import DataError
from tests.classifier.common import learnt, photos, saved, tiny


@pytest.mark.parametrize(("beside", "processes"), [(False, 0), (True, 0), (True, 2)])
def test_readable_photos_get_the_same_answers_as_without_the_bad_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool, processes: int
) -> None:
    """Read while others are answered, as for a GPU, or in turn; in threads or in processes."""
    monkeypatch.setenv(SETTING, str(processes))
    monkeypatch.setattr(readable, "works_beside_cpu", lambda device: beside)
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


def test_readable_photos_are_evaluated_as_if_the_bad_ones_were_not_there(tmp_path: Path) -> None:
    classifier = learnt({"red": 6}, {"blue": 6, "sun": 5})
    shown = {name: photos(name, 3, seed=7) for name in ("red", "blue", "sun", "never")}
    files = [
        saved(tmp_path / n / f"{i}.png", p) for n, own in shown.items() for i, p in enumerate(own)
    ]
    names = [file.parent.name for file in files]
    expected = classifier.evaluate(files, names)
    (tmp_path / "empty.png").touch()
    bad = tmp_path / "empty.png"
    found, errors = evaluate_readable(
        classifier, [bad, *files[:5], bad, *files[5:]], ["red", *names[:5], "sun", *names[5:]]
    )
    assert sorted(errors) == [0, 6]
    assert found.per_class == expected.per_class
    assert found.per_batch == expected.per_batch
    assert found.confusion == expected.confusion
    assert found.unseen == expected.unseen
    assert found.ece == pytest.approx(expected.ece, abs=1e-5)
    assert [a.label for a in found.answers] == [a.label for a in expected.answers]
    nothing, both = evaluate_readable(classifier, [bad, bad], ["red", "blue"])
    assert (nothing.photos, nothing.accuracy, len(both)) == (0, None, 2)


def test_the_readable_photos_are_learnt_as_if_the_others_were_not_there(tmp_path: Path) -> None:
    good = tmp_path / "good"
    for name in ("red", "blue", "green"):
        (good / name).mkdir(parents=True)
        for i, image in enumerate(photos(name, 6)):
            saved(good / name / f"{i}.png", image)
    mixed = Path(shutil.copytree(good, tmp_path / "mixed"))
    (mixed / "cyan").mkdir()  # a class of which no photo can be read
    bad = [mixed / "blue" / "3x.png", mixed / "cyan" / "0.png", mixed / "red" / "9.png"]
    for file in bad:
        file.write_bytes(b"")
    found, expected = tiny(), tiny()
    errors = learn_readable(found, mixed)
    assert [error.file for error in errors] == [str(file) for file in bad]
    assert learn_readable(expected, good) == []
    assert found.classes_ == expected.classes_
    assert found.history_[-1].photos == expected.history_[-1].photos
    asked = photos("red", 3, seed=7)
    assert found.predict_proba(asked) == pytest.approx(expected.predict_proba(asked), abs=1e-6)


def test_if_strict_nothing_is_learnt_and_all_bad_photos_are_named(tmp_path: Path) -> None:
    (tmp_path / "red").mkdir()
    saved(tmp_path / "red" / "0.png", photos("red", 1)[0])
    for name in ("1.png", "2.png"):
        (tmp_path / "red" / name).touch()
    classifier = tiny()
    with pytest.raises(DataError, match=r"2 of 3 photos .*1\.png.*2\.png.*; repair them"):
        learn_readable(classifier, tmp_path, strict=True)
    assert classifier.classes_ == []
    (tmp_path / "red" / "0.png").write_bytes(b"")
    with pytest.raises(DataError, match="none of 3 photos can be read; the first: "):
        learn_readable(classifier, tmp_path)


def test_an_error_that_is_not_about_a_photo_stays_as_it_is(tmp_path: Path) -> None:
    for name in ("cat", " Cat"):
        (tmp_path / name).mkdir()
        saved(tmp_path / name / "0.png", photos("red", 1)[0])
    with pytest.raises(DataError, match="differ only in case"):
        learn_readable(tiny(), tmp_path)
