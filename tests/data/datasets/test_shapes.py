import math

import numpy as np
import pytest
from numpy.typing import NDArray

from cprompt.data.datasets import shapes
from cprompt.errors import ConfigError

LUMA = np.array([0.299, 0.587, 0.114])


def ink(name: str, index: int = 0, size: int = 64) -> NDArray[np.bool_]:
    """Where an easy image differs from its corner, which is always ground."""
    pixels = shapes.draw_image(name, "train", index, size=size, difficulty=0).astype(int)
    return np.abs(pixels - pixels[0, 0]).max(axis=2) > np.abs(pixels - pixels[0, 0]).max() / 2


def test_the_dataset_has_the_asked_classes_counts_and_size() -> None:
    dataset = shapes.load(classes=4, train_per_class=3, test_per_class=2, size=32)
    assert dataset.name == "shapes"
    assert dataset.classes == shapes.CLASSES[:4]
    assert dataset.train.per_class().tolist() == [3] * 4
    assert dataset.test.per_class().tolist() == [2] * 4
    assert np.asarray(dataset.train.images).shape == (12, 32, 32, 3)
    assert dataset.train.load(0).size == (32, 32)


def test_there_are_sixty_classes_with_different_names() -> None:
    assert len(shapes.CLASSES) == len(set(shapes.CLASSES)) == 60


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


def test_seed_class_part_and_index_each_change_the_image() -> None:
    base = shapes.draw_image("gear", "train", 0)
    for other in (
        shapes.draw_image("gear", "train", 0, seed=1),
        shapes.draw_image("flower", "train", 0),
        shapes.draw_image("gear", "test", 0),
        shapes.draw_image("gear", "train", 1),
    ):
        assert np.abs(base.astype(int) - other).mean() > 5


def test_another_size_shows_the_same_scene() -> None:
    def coarse(index: int, size: int) -> NDArray[np.float64]:
        pixels = shapes.draw_image("house", "test", index, size=size).astype(float)
        return pixels.reshape(16, size // 16, 16, size // 16, 3).mean(axis=(1, 3))

    for index in range(5):
        same = np.abs(coarse(index, 64) - coarse(index, 128)).mean()
        different = np.abs(coarse(index, 64) - coarse(index + 1, 128)).mean()
        assert same < 6 < different


@pytest.mark.parametrize("name", shapes.CLASSES)
def test_an_easy_figure_is_of_two_colours_far_apart_and_clear_of_the_border(name: str) -> None:
    pixels = shapes.draw_image(name, "train", 0, difficulty=0)
    figure = ink(name)
    assert 0.03 < figure.mean() < 0.7
    assert figure[2:-2, 2:-2].sum() == figure.sum()
    light = pixels / 255 @ LUMA
    assert np.abs(light[figure] - light[0, 0]).max() > 0.44


def test_no_two_classes_are_drawn_alike() -> None:
    figures = [ink(name) for name in shapes.CLASSES]
    for i, one in enumerate(figures):
        for other in figures[:i]:
            overlap = max((one & o).sum() / (one | o).sum() for o in (other, other[:, ::-1]))
            assert overlap < 0.93


def test_areas_are_those_of_the_geometry() -> None:
    unit = 0.85 * 128 / 2  # pixels: an easy figure's 1.0 at 128 pixels
    disc = 20 / 2 * math.sin(2 * math.pi / 20) * (0.95 * unit) ** 2  # a 20-gon
    assert ink("disc", size=128).sum() == pytest.approx(disc, rel=0.02)
    assert ink("three bars", size=128).sum() == pytest.approx(3 * 0.36 * 1.7 * unit**2, rel=0.04)


def test_figures_are_mirrored_about_half_of_the_time() -> None:
    columns = np.arange(64) - 31.5
    right = sum(float(ink("cup", i).sum(axis=0) @ columns) > 0 for i in range(40))
    assert 12 <= right <= 28


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
