"""The drawn dataset."""

from __future__ import annotations

import numpy as np
import pytest

from cprompt.data.datasets import shapes
from cprompt.errors import ConfigError


def test_the_dataset_has_the_asked_classes_counts_and_size() -> None:
    dataset = shapes.load(classes=4, train_per_class=3, test_per_class=2, size=32)
    assert dataset.name == "shapes"
    assert dataset.classes == shapes.CLASSES[:4]
    assert dataset.train.per_class().tolist() == [3] * 4
    assert dataset.test.per_class().tolist() == [2] * 4
    assert np.asarray(dataset.train.images).shape == (12, 32, 32, 3)
    assert dataset.train.load(0).size == (32, 32)


def test_an_image_does_not_depend_on_how_many_others_are_drawn() -> None:
    few = shapes.load(classes=3, train_per_class=2, test_per_class=1)
    many = shapes.load(classes=5, train_per_class=4, test_per_class=3)
    for part_few, part_many in ((few.train, many.train), (few.test, many.test)):
        for label in range(3):
            own = np.flatnonzero(part_few.labels == label)
            same = np.flatnonzero(part_many.labels == label)[: len(own)]
            np.testing.assert_array_equal(part_few.images[own], part_many.images[same])


def test_loaded_images_are_those_of_their_class_part_and_index() -> None:
    dataset = shapes.load(classes=2, train_per_class=2, test_per_class=2, seed=5, difficulty=0.5)
    for part, images in (("train", dataset.train), ("test", dataset.test)):
        for place, (label, index) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
            alone = shapes.draw_image(shapes.CLASSES[label], part, index, seed=5, difficulty=0.5)
            assert images.labels[place] == label
            np.testing.assert_array_equal(images.images[place], alone)


def test_raw_pixels_do_not_give_the_class_away() -> None:
    dataset = shapes.load(classes=10, train_per_class=20, test_per_class=10, size=32)
    train = np.asarray(dataset.train.images, dtype=float).reshape(10, 20, -1).mean(axis=1)
    test = np.asarray(dataset.test.images, dtype=float).reshape(100, -1)
    nearest = ((test[:, None] - train[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == dataset.test.labels).mean() < 0.3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"classes": 0}, "1 to 60"),
        ({"classes": 61}, "61"),
        ({"train_per_class": 0}, "train_per_class=0"),
        ({"test_per_class": 0}, "test_per_class=0"),
        ({"size": 8}, "8"),
        ({"difficulty": 1.5}, "1.5"),
        ({"difficulty": -0.1}, "-0.1"),
    ],
)
def test_a_value_out_of_range_is_named(options: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        shapes.load(**options)  # type: ignore[arg-type]
