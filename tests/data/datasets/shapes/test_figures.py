"""The classes of figures."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cprompt.data.datasets import shapes

LUMA = np.array([0.299, 0.587, 0.114])


def ink(name: str, index: int = 0, size: int = 64) -> NDArray[np.bool_]:
    """Where an easy image differs from its corner, which is always ground."""
    pixels = shapes.draw_image(name, "train", index, size=size, difficulty=0).astype(int)
    return np.abs(pixels - pixels[0, 0]).max(axis=2) > np.abs(pixels - pixels[0, 0]).max() / 2


def test_there_are_sixty_classes_with_different_names() -> None:
    assert len(shapes.CLASSES) == len(set(shapes.CLASSES)) == 60


def test_no_two_classes_are_drawn_alike() -> None:
    figures = [ink(name) for name in shapes.CLASSES]
    for i, one in enumerate(figures):
        for other in figures[:i]:
            overlap = max((one & o).sum() / (one | o).sum() for o in (other, other[:, ::-1]))
            assert overlap < 0.93


@pytest.mark.parametrize("name", shapes.CLASSES)
def test_an_easy_figure_is_of_two_colours_far_apart_and_clear_of_the_border(name: str) -> None:
    pixels = shapes.draw_image(name, "train", 0, difficulty=0)
    figure = ink(name)
    assert 0.03 < figure.mean() < 0.7
    assert figure[2:-2, 2:-2].sum() == figure.sum()
    light = pixels / 255 @ LUMA
    assert np.abs(light[figure] - light[0, 0]).max() > 0.44
