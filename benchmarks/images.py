"""Drawn images, for benchmarks without a folder of real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cprompt.data.datasets import shapes
from cprompt.data.image_set import Dataset, ImageSet

CASTS: dict[str, tuple[int, int, int]] = {
    "red": (220, 60, 60),
    "green": (60, 200, 90),
    "blue": (70, 90, 220),
    "yellow": (230, 210, 60),
}
DIFFICULTY = 0.2


def draw_jpegs(folder: Path, classes: int, per_class: int) -> None:
    """Class folders of JPEGs of 500 x 375 pixels, one in three upright.

    Grain makes the files as large as photographs, about 90 kB, and so as slow to decode.
    """
    grain = np.random.default_rng(0).normal(0, 16, (500, 500, 3))
    for name in shapes.CLASSES[:classes]:
        (folder / name).mkdir(parents=True)
        for index in range(per_class):
            drawn = Image.fromarray(shapes.draw_image(name, "train", index, size=125))
            levels = np.asarray(drawn.resize((500, 500), Image.Resampling.BILINEAR)) + grain
            image = Image.fromarray(levels.clip(0, 255).astype(np.uint8))
            box = (62, 0, 437, 500) if index % 3 == 0 else (0, 62, 500, 437)
            image.crop(box).save(folder / name / f"{index}.jpg", quality=90)


def draw_dataset(classes: int, train_per_class: int, test_per_class: int) -> Dataset:
    """Up to 240 classes of 64 x 64 pixels; a class is one figure under one cast of colour."""
    names = [f"{cast} {figure}" for cast in CASTS for figure in shapes.CLASSES][:classes]

    def part(name: str, count: int) -> ImageSet:
        labels = np.repeat(np.arange(len(names)), count)
        images = [_draw(names[label], name, i % count) for i, label in enumerate(labels)]
        return ImageSet(np.stack(images), labels, tuple(names))

    return Dataset("drawn", part("train", train_per_class), part("test", test_per_class))


def _draw(name: str, part: str, index: int) -> NDArray[np.uint8]:
    cast, figure = name.split(" ", 1)
    seed = 1 + list(CASTS).index(cast)
    levels = shapes.draw_image(figure, part, index, seed=seed, difficulty=DIFFICULTY)
    return (levels // 2 + np.array(CASTS[cast], dtype=np.uint8) // 2).astype(np.uint8)
