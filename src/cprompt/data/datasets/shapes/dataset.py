"""The drawn dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cprompt.data.datasets.shapes.figures import CLASSES
from cprompt.data.datasets.shapes.scene import draw_image
from cprompt.data.image_set import Dataset, ImageSet
from cprompt.errors import ConfigError


def load(
    root: Path | None = None,
    *,
    classes: int = 30,
    train_per_class: int = 40,
    test_per_class: int = 20,
    size: int = 64,
    seed: int = 0,
    difficulty: float = 1.0,
) -> Dataset:
    """Draw the first `classes` of `CLASSES`; `draw_image` explains `difficulty`.

    `root` is unused: nothing is read from disk. Every dataset's loader has it.
    """
    if not 1 <= classes <= len(CLASSES):
        raise ConfigError(f"shapes: classes must be 1 to {len(CLASSES)}, not {classes}")
    if min(train_per_class, test_per_class) < 1:
        raise ConfigError(
            "shapes: each class needs at least 1 image in each part, "
            f"not train_per_class={train_per_class}, test_per_class={test_per_class}"
        )
    if size < 16:
        raise ConfigError(f"shapes: size must be at least 16 pixels, not {size}")
    if not 0 <= difficulty <= 1:
        raise ConfigError(f"shapes: difficulty must be 0 to 1, not {difficulty}")
    names = CLASSES[:classes]

    def part(name: str, count: int) -> ImageSet:
        images = np.empty((classes, count, size, size, 3), dtype=np.uint8)
        for label, index in np.ndindex(classes, count):
            images[label, index] = draw_image(
                names[label], name, index, size=size, seed=seed, difficulty=difficulty
            )
        labels = np.repeat(np.arange(classes, dtype=np.int64), count)
        return ImageSet(images.reshape(-1, size, size, 3), labels, names)

    return Dataset("shapes", part("train", train_per_class), part("test", test_per_class))
