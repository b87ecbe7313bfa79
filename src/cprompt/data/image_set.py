"""What a dataset is: images, labels and class names. Nothing here knows about tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cprompt.data.image_files import read_image
from cprompt.errors import DataError, counted, some


@dataclass(frozen=True)
class ImageSet:
    """Labelled images, not decoded: files on disk, or one array (N, H, W, 3) of uint8.

    `labels` (N,) are places in `classes`.

    >>> grey = ImageSet(np.zeros((3, 8, 8, 3), np.uint8), np.array([0, 1, 1]), ("cat", "dog"))
    >>> grey.per_class().tolist()
    [1, 2]
    """

    images: Sequence[Path] | NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise DataError(
                f"{counted(len(self.images), 'image')} but {counted(len(self.labels), 'label')}"
            )
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise DataError(
                f"labels run from {self.labels.min()} to {self.labels.max()}, "
                f"but there are {len(self.classes)} class names"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, index: int) -> Image.Image:
        """The image as upright 8-bit RGB; a DataError names a file that cannot be read."""
        image = self.images[index]
        return read_image(image) if isinstance(image, Path) else Image.fromarray(image)

    def subset(self, indices: Sequence[int] | NDArray[np.int64]) -> ImageSet:
        """The images at `indices`, in that order, with the same class names."""
        chosen = np.asarray(indices, dtype=np.int64)
        images: Sequence[Path] | NDArray[np.uint8]
        if isinstance(self.images, np.ndarray):
            images = self.images[chosen]
        else:
            images = [self.images[i] for i in chosen]
        return ImageSet(images, self.labels[chosen], self.classes)

    def per_class(self) -> NDArray[np.int64]:
        """How many images each class has."""
        return np.bincount(self.labels, minlength=len(self.classes))


@dataclass(frozen=True)
class Dataset:
    """Images to learn from and images to test on, over the same classes.

    >>> grey = ImageSet(np.zeros((2, 8, 8, 3), np.uint8), np.array([0, 1]), ("cat", "dog"))
    >>> Dataset("pets", train=grey, test=grey).classes
    ('cat', 'dog')
    """

    name: str
    train: ImageSet
    test: ImageSet

    def __post_init__(self) -> None:
        if self.train.classes != self.test.classes:
            raise DataError("train and test name different classes", file=self.name)
        missing = [c for c, n in zip(self.classes, self.train.per_class(), strict=True) if n == 0]
        if missing:
            raise DataError(
                f"no training image for {some(missing)}",
                file=self.name,
                hint="add images, or remove the class from the test part too",
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, indexed by label."""
        return self.train.classes

    def with_validation(self, fraction: float, seed: int) -> Dataset:
        """Replace the test part by `fraction` of each class's training images.

        For choosing settings without looking at the test set. Each class gives at least one
        image and keeps at least one.
        """
        if not 0 < fraction < 1:
            raise DataError(f"validation fraction {fraction} is not between 0 and 1")
        rng = np.random.default_rng(seed)
        held_out = np.zeros(len(self.train), dtype=bool)
        for label, count in enumerate(self.train.per_class()):
            if count < 2:
                raise DataError(
                    f"class {self.classes[label]!r} has {count} training image, but two are "
                    "needed to hold one out for validation",
                    file=self.name,
                )
            members = np.flatnonzero(self.train.labels == label)
            n_held_out = min(max(1, round(fraction * count)), count - 1)
            held_out[rng.permutation(members)[:n_held_out]] = True
        return Dataset(
            self.name,
            train=self.train.subset(np.flatnonzero(~held_out)),
            test=self.train.subset(np.flatnonzero(held_out)),
        )
