"""Which photos are suggested: doubtful ones, each of another kind, none twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cprompt import ContinualClassifier
from cprompt.classifier.suggestions import choose, doubts, suggest
from cprompt.errors import ConfigError
from tests.classifier.common import learnt, photos, saved


@pytest.fixture(scope="module")
def classifier() -> ContinualClassifier:
    return learnt({"red": 6, "green": 6, "blue": 6})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pool")
    return [
        saved(folder / f"{name}{i}.png", each)
        for name in ("red", "green", "blue", "grey")
        for i, each in enumerate(photos(name, 5, seed=7))
    ]


def test_doubt_is_that_of_a_naive_loop() -> None:
    rng = np.random.default_rng(0)
    p, familiar = rng.dirichlet(np.ones(5), 20), rng.random(20)
    for row, f, found in zip(p, familiar, doubts(p, familiar), strict=True):
        first, second = sorted(row.tolist())[:-3:-1]
        assert found == pytest.approx(1 - f * (first - second))
    assert doubts(np.ones((2, 1)), np.array([1.0, 0.25])).tolist() == [0.0, 0.75]


def test_one_photo_of_each_kind_of_doubt_is_chosen() -> None:
    """Three kinds of answers, of unequal number; of each one photo, in the middle of its kind."""
    rng = np.random.default_rng(1)
    kinds = np.array([[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.4, 0.6]])
    of = np.repeat([0, 1, 2], [40, 12, 5])
    p = kinds[of] + rng.uniform(0, 0.05, (57, 4))
    p /= p.sum(axis=1, keepdims=True)
    chosen = choose(p, doubts(p, np.ones(57)), 3)
    assert sorted(of[chosen].tolist()) == [0, 1, 2]
    for i in chosen:
        mine = np.sqrt(p[of == of[i]])
        apart = np.linalg.norm(mine - mine.mean(axis=0), axis=1)
        assert np.linalg.norm(np.sqrt(p[i]) - mine.mean(axis=0)) <= np.quantile(apart, 0.2)


def test_photos_that_the_model_is_sure_of_hardly_count() -> None:
    sure = np.tile([0.98, 0.01, 0.01], (200, 1))
    unsure = np.array([[0.4, 0.35, 0.25], [0.3, 0.3, 0.4], [0.34, 0.42, 0.24]])
    p = np.concatenate([sure, unsure])
    chosen = choose(p, doubts(p, np.ones(len(p))), 4)
    assert {200, 201, 202} <= set(chosen.tolist())
    assert len(set(chosen.tolist())) == 4


def test_as_many_different_photos_as_asked_for_even_if_answers_are_equal() -> None:
    p = np.tile([0.5, 0.5], (9, 1))
    doubt = np.linspace(0.1, 0.9, 9)
    for count in (1, 4, 9, 12):
        chosen = choose(p, doubt, count).tolist()
        assert len(set(chosen)) == len(chosen) == min(count, 9)
    assert choose(p[:0], doubt[:0], 3).tolist() == []


def test_suggestions_say_what_the_model_answers_now(
    classifier: ContinualClassifier, files: list[Path]
) -> None:
    found = suggest(classifier, files, 6)
    assert len(found.chosen) == 6
    assert [each.doubt for each in found.chosen] == sorted(
        (each.doubt for each in found.chosen), reverse=True
    )
    p = classifier.predict_proba(files)
    explained = classifier.explain(files)
    for each in found.chosen:
        row = p[each.index]
        first, second = np.sort(row)[:-3:-1]
        assert each.best == classifier.classes_[int(row.argmax())]
        assert each.probability == pytest.approx(first)
        assert each.label == explained[each.index].label
        assert each.familiarity == pytest.approx(explained[each.index].familiarity)
        assert each.doubt == pytest.approx(1 - each.familiarity * (first - second))
    assert suggest(classifier, files, 6) == found


def test_copies_and_unreadable_photos_are_left_out(
    classifier: ContinualClassifier, files: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "empty.png").touch()
    copies = [saved(tmp_path / f"{i}.bmp", photos("red", 5, seed=7)[i]) for i in range(5)]
    progress: list[tuple[int, int]] = []
    found = suggest(
        classifier,
        [tmp_path / "empty.png", *files, *copies],
        26,
        lambda done, total: progress.append((done, total)),
    )
    assert sorted(each.index for each in found.chosen) == list(range(1, 21))
    assert found.repeated == 5
    assert [error.file for error in found.unreadable] == [str(tmp_path / "empty.png")]
    assert progress[-1] == (26, 26)


def test_nothing_readable_and_nothing_asked_for(
    classifier: ContinualClassifier, tmp_path: Path
) -> None:
    assert suggest(classifier, [tmp_path / "absent.png"], 3).chosen == []
    with pytest.raises(ConfigError, match="0 photos"):
        suggest(classifier, [], 0)
