"""Images from files, reduced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cprompt.data.pipeline.reduced import MAX_ASPECT, read_reduced, reduced, shrunk
from cprompt.errors import DataError


def test_large_images_are_made_smaller_and_small_ones_stay() -> None:
    assert shrunk(Image.new("RGB", (400, 100)), 50).size == (200, 50)
    assert shrunk(Image.new("RGB", (100, 401)), 50).size == (50, 200)
    small = Image.new("RGB", (40, 90))
    assert shrunk(small, 50) is small


def test_a_square_can_be_cropped_from_every_image() -> None:
    line = Image.new("RGB", (MAX_ASPECT, 1))
    assert reduced(line, "line", 8) is line
    with pytest.raises(DataError, match="line: has 51×1 pixels"):
        reduced(Image.new("RGB", (MAX_ASPECT + 1, 1)), "line", 8)


def test_a_file_is_read_by_its_path_and_by_its_url(tmp_path: Path) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (20, 40, 3), np.uint8)
    Image.fromarray(levels).save(tmp_path / "a.png")
    url = f"file://{tmp_path / 'a.png'}"
    for file in (tmp_path / "a.png", str(tmp_path / "a.png"), url):
        np.testing.assert_array_equal(np.asarray(read_reduced(file, None)), levels)
        assert read_reduced(file, 10).size == (20, 10)
