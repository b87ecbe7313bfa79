"""Names that are one name, and photos that are one photo."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cprompt.classifier.batch_checks import RepeatedPhotos, check_names
from cprompt.errors import DataError
from cprompt.training.observers import Observer
from tests.classifier.common import batch, gradient, learnt, photos, saved, tiny


@pytest.mark.parametrize(
    ("names", "known", "pair"),
    [
        (["Cat", "dog", "cat"], [], ("cat", "Cat")),
        (["cat "], ["cat"], ("cat ", "cat")),
        (["STRASSE"], ["Straße"], ("STRASSE", "Straße")),
    ],
)
def test_names_that_differ_only_in_case_or_spaces_are_refused(
    names: list[str], known: list[str], pair: tuple[str, str]
) -> None:
    with pytest.raises(DataError) as error:
        check_names(names, known)
    assert all(repr(name) in error.value.message for name in pair)


def test_a_model_that_knows_both_spellings_may_go_on_learning_them() -> None:
    check_names(["Cat", "cat", "dog", "dog"], ["cat", "Cat"])
    with pytest.raises(DataError, match="'CAT'"):
        check_names(["CAT"], ["cat", "Cat"])


class Hears(Observer):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def noticed(self, message: str) -> None:
        self.heard.append(message)


def checked(images: list[np.ndarray], names: list[str], paths: list[Path] | None = None) -> Hears:
    repeated, observer = RepeatedPhotos(), Hears()
    for i in reversed(range(len(images))):  # threads finish in any order
        repeated.add(i, images[i])
    repeated.check(images if paths is None else paths, names, observer)
    return observer


def test_a_photo_in_two_classes_names_both_files() -> None:
    same, other = gradient(), 255 - gradient()
    paths = [Path("cat/1.jpg"), Path("cat/2.jpg"), Path("dog/3.jpg")]
    with pytest.raises(DataError) as error:
        checked([same, other, same], ["cat", "cat", "dog"], paths)
    assert error.value.file == str(paths[2])
    for told in (str(paths[0]), "'cat'", "'dog'"):
        assert told in error.value.message


def test_the_second_of_three_equal_photos_hides_no_third_in_another_class() -> None:
    with pytest.raises(DataError, match=r"item 2: .*item 0"):
        checked([gradient()] * 3, ["cat", "cat", "dog"])


def test_a_photo_twice_in_one_class_is_told_once_and_learnt() -> None:
    images = [gradient(), gradient(), 255 - gradient(), gradient()]
    (told,) = checked(images, ["cat"] * 4).heard
    assert told.startswith("2 photos")
    assert "item 0 = item 1" in told


def test_equal_bytes_in_another_shape_are_another_photo() -> None:
    assert checked([gradient(4, 6), gradient(6, 4)], ["cat", "dog"]).heard == []


def test_different_photos_are_not_mentioned() -> None:
    assert checked(*batch(0, red=5, sea=5)).heard == []


def test_learning_refuses_both_and_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    classifier = learnt({"red": 3})
    before = classifier.model_id
    new = photos("moss", 3, seed=7)
    with pytest.raises(DataError, match="'Red' and class 'red'"):
        classifier.learn(new, ["Red"] * 3)
    for name, image in (("a/1.png", new[0]), ("a/2.png", new[1]), ("b/3.png", new[0])):
        saved(tmp_path / name, image)
    with pytest.raises(DataError, match=r"3\.png: is the same photo as .*1\.png"):
        classifier.learn(tmp_path)
    assert classifier.model_id == before


def test_learning_tells_its_observer_of_repeated_photos() -> None:
    observer = Hears()
    images, names = batch(0, red=3, sea=3)
    tiny().learn([*images, images[0]], [*names, names[0]], observer=observer)
    assert len(observer.heard) == 1
