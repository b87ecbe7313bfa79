"""One drawn image."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from cprompt.data.datasets import shapes


def ink(name: str, index: int = 0, size: int = 64) -> NDArray[np.bool_]:
    """Where an easy image differs from its corner, which is always ground."""
    pixels = shapes.draw_image(name, "train", index, size=size, difficulty=0).astype(int)
    return np.abs(pixels - pixels[0, 0]).max(axis=2) > np.abs(pixels - pixels[0, 0]).max() / 2


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


def test_figures_are_mirrored_about_half_of_the_time() -> None:
    columns = np.arange(64) - 31.5
    right = sum(float(ink("cup", i).sum(axis=0) @ columns) > 0 for i in range(40))
    assert 12 <= right <= 28


def test_areas_are_those_of_the_geometry() -> None:
    unit = 0.85 * 128 / 2  # pixels: an easy figure's 1.0 at 128 pixels
    disc = 20 / 2 * math.sin(2 * math.pi / 20) * (0.95 * unit) ** 2  # a 20-gon
    assert ink("disc", size=128).sum() == pytest.approx(disc, rel=0.02)
    assert ink("three bars", size=128).sum() == pytest.approx(3 * 0.36 * 1.7 * unit**2, rel=0.04)
