"""Images that look the same, whatever their size and compression."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from cprompt.data import near_duplicates
from cprompt.data.near_duplicates import look, look_alikes


def scene(seed: int, size: tuple[int, int] = (240, 180)) -> Image.Image:
    """Blurred noise: as smooth as a photo."""
    levels = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(levels).resize(size, Image.Resampling.BICUBIC)


def recompressed(image: Image.Image, scale: float, quality: int) -> Image.Image:
    file = io.BytesIO()
    smaller = image.resize((round(image.width * scale), round(image.height * scale)))
    smaller.save(file, "JPEG", quality=quality)
    return Image.open(file)


def test_copies_of_another_size_and_quality_are_found_among_other_images() -> None:
    images = [scene(i) for i in range(12)]
    images += [recompressed(images[3], 0.5, 40), recompressed(images[3], 1.7, 80)]
    images += [recompressed(images[0], 0.8, 60)]
    found = look_alikes(np.stack([look(image) for image in images]))
    assert found == [[0, 14], [3, 12, 13]]


def test_the_same_shapes_in_other_colours_are_another_image() -> None:
    image = np.asarray(scene(0)).astype(int)
    darker = Image.fromarray((image // 2).astype(np.uint8))
    assert look_alikes(np.stack([look(scene(0)), look(darker)])) == []


def test_groups_are_those_of_a_naive_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair is compared, bit by bit; groups are what pairs connect."""
    monkeypatch.setattr(near_duplicates, "_AT_ONCE", 7)  # pairs lie in and across parts
    rng = np.random.default_rng(0)
    looks = np.repeat(rng.integers(0, 256, (6, 16, 17, 3)), 5, axis=0)
    noise = rng.uniform(-1, 1, looks.shape) * rng.uniform(4, 24, (len(looks), 1, 1, 1))
    looks = (looks + noise).clip(0, 255).astype(np.uint8)
    looks = looks[rng.permutation(len(looks))]

    def alike(a: int, b: int) -> bool:
        bits = 0
        for row in range(16):
            for column in range(16):
                signs = []
                for one in (looks[a], looks[b]):
                    left, right = one[row, column].tolist(), one[row, column + 1].tolist()
                    signs.append(sum(right) > sum(left))
                bits += signs[0] != signs[1]
        levels = np.abs(looks[a].astype(int) - looks[b].astype(int)).mean()
        return bits <= near_duplicates.BITS_APART and levels <= near_duplicates.LEVELS_APART

    group = list(range(len(looks)))
    for a in range(len(looks)):
        for b in range(a):
            if alike(a, b):
                group = [group[b] if g == group[a] else g for g in group]
    naive = [[i for i, g in enumerate(group) if g == first] for first in dict.fromkeys(group)]
    naive = [each for each in naive if len(each) > 1]
    assert 0 < sum(map(len, naive)) < len(looks)  # some are too noisy
    assert look_alikes(looks) == naive


def test_flat_images_have_nothing_to_be_recognised_by() -> None:
    grey = [look(Image.new("RGB", (40, 30), (level, level, level))) for level in (80, 81)]
    assert look_alikes(np.stack(grey)) == []


def test_without_images_nothing_is_alike() -> None:
    assert look_alikes(np.zeros((0, 16, 17, 3), np.uint8)) == []
