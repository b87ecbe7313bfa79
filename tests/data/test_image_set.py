"""Labelled images, and datasets of two parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cprompt.data.image_set import Dataset, ImageSet
from cprompt.errors import DataError

LABELS = np.array([2, 0, 0, 1, 2, 2])
CLASSES = ("ant", "bee", "cat")


def numbered(labels: np.ndarray = LABELS, classes: tuple[str, ...] = CLASSES) -> ImageSet:
    """Image i has all levels equal to i."""
    levels = np.arange(len(labels), dtype=np.uint8)
    return ImageSet(np.tile(levels[:, None, None, None], (1, 4, 5, 3)), labels, classes)


def numbers(images: ImageSet) -> list[int]:
    return [int(image[0, 0, 0]) for image in images.images]


def test_images_are_counted_per_class() -> None:
    assert len(numbered()) == 6
    assert numbered().per_class().tolist() == [2, 1, 3]
    assert numbered(np.array([1]), CLASSES).per_class().tolist() == [0, 1, 0]


def test_a_subset_keeps_order_labels_and_class_names() -> None:
    part = numbered().subset([5, 1])
    assert numbers(part) == [5, 1]
    assert part.labels.tolist() == [2, 0]
    assert part.classes == CLASSES


def test_files_are_loaded_and_subsets_of_them_are_files(tmp_path: Path) -> None:
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    for level, file in enumerate(files):
        Image.new("L", (5, 4), 100 * level).save(file)
    images = ImageSet(files, np.array([0, 1]), ("dark", "light"))
    loaded = images.load(1)
    assert (loaded.mode, loaded.size) == ("RGB", (5, 4))
    assert np.asarray(loaded).max() == 100
    assert images.subset([1]).images == [files[1]]


def test_an_image_of_an_array_is_loaded_as_it_is() -> None:
    assert np.array_equal(numbered().load(3), np.full((4, 5, 3), 3))


@pytest.mark.parametrize(
    ("labels", "message"),
    [([0, 1], "6 images but 2 labels"), ([0, 0, 0, 0, 0, 3], "0 to 3, but there are 3 class")],
)
def test_labels_must_fit_images_and_classes(labels: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ImageSet(numbered().images, np.array(labels), CLASSES)


def test_negative_labels_are_refused() -> None:
    with pytest.raises(DataError, match="from -1 to 0"):
        ImageSet(np.zeros((2, 4, 4, 3), np.uint8), np.array([-1, 0]), CLASSES)


def test_both_parts_must_have_the_same_classes_and_each_class_training_images() -> None:
    with pytest.raises(DataError, match="different classes") as caught:
        Dataset("zoo", numbered(), numbered(classes=("ant", "bee", "cow")))
    assert caught.value.file == "zoo"
    with pytest.raises(DataError, match="no training image for 'bee'"):
        Dataset("zoo", numbered(np.array([0, 2])), numbered())


@pytest.mark.parametrize(("fraction", "held_out"), [(0.01, 1), (0.3, 3), (0.99, 9)])
def test_validation_takes_a_share_of_each_class_and_leaves_some(
    fraction: float, held_out: int
) -> None:
    labels = np.tile([0, 1, 2], 10)
    whole = Dataset("zoo", numbered(labels), numbered())
    made = whole.with_validation(fraction, seed=0)
    assert made.test.per_class().tolist() == [held_out] * 3
    assert sorted(numbers(made.train) + numbers(made.test)) == list(range(30))
    assert (made.test.labels == labels[numbers(made.test)]).all()
    again, other = (whole.with_validation(fraction, seed=s) for s in (0, 1))
    assert numbers(again.test) == numbers(made.test)
    assert numbers(other.test) != numbers(made.test)


def test_validation_needs_two_images_per_class_and_a_share() -> None:
    with pytest.raises(DataError, match="'bee' has 1 training image"):
        Dataset("zoo", numbered(), numbered()).with_validation(0.5, seed=0)
    with pytest.raises(DataError, match="fraction 1 is not between 0 and 1"):
        Dataset("zoo", numbered(), numbered()).with_validation(1, seed=0)
