"""What a dataset is: pictures, labels and class names. Tasks are not known here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cprompt.data.images import read_image
from cprompt.errors import DataError, some


@dataclass(frozen=True)
class ImageSet:
    """Labelled pictures, either files on disk or one array of shape (N, H, W, 3), uint8."""

    pictures: Sequence[Path] | NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.pictures) != len(self.labels):
            raise DataError(f"{len(self.pictures)} pictures but {len(self.labels)} labels")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise DataError(
                f"labels run from {self.labels.min()} to {self.labels.max()}, "
                f"but there are {len(self.classes)} class names"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, index: int) -> Image.Image:
        """The picture as 8-bit RGB, upright; a file that cannot be read is named in the error."""
        picture = self.pictures[index]
        return read_image(picture) if isinstance(picture, Path) else Image.fromarray(picture)

    def subset(self, indices: Sequence[int] | NDArray[np.int64]) -> ImageSet:
        """The pictures at `indices`, in that order, with the same class names."""
        chosen = np.asarray(indices, dtype=np.int64)
        pictures: Sequence[Path] | NDArray[np.uint8]
        if isinstance(self.pictures, np.ndarray):
            pictures = self.pictures[chosen]
        else:
            pictures = [self.pictures[i] for i in chosen]
        return ImageSet(pictures, self.labels[chosen], self.classes)

    def per_class(self) -> NDArray[np.int64]:
        """How many pictures each class has."""
        return np.bincount(self.labels, minlength=len(self.classes))


@dataclass(frozen=True)
class Dataset:
    """Pictures to learn from and pictures to test on, over the same classes."""

    name: str
    train: ImageSet
    test: ImageSet

    def __post_init__(self) -> None:
        if self.train.classes != self.test.classes:
            raise DataError(f"{self.name}: train and test name different classes")
        missing = [c for c, n in zip(self.classes, self.train.per_class(), strict=True) if n == 0]
        if missing:
            raise DataError(
                f"{self.name}: no training picture for {some(missing)}; "
                "add pictures, or remove the class from the test part too"
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, indexed by label."""
        return self.train.classes

    def with_validation(self, fraction: float, seed: int) -> Dataset:
        """Replace the test part by `fraction` of each class's training pictures.

        For choosing settings without looking at the test set. Each class gives at least one
        picture and keeps at least one.
        """
        if not 0 < fraction < 1:
            raise DataError(f"validation fraction {fraction} is not between 0 and 1")
        rng = np.random.default_rng(seed)
        held_out = np.zeros(len(self.train), dtype=bool)
        for label, count in enumerate(self.train.per_class()):
            if count < 2:
                raise DataError(
                    f"{self.name}: class {self.classes[label]!r} has {count} training picture; "
                    "two are needed to hold one out for validation"
                )
            members = np.flatnonzero(self.train.labels == label)
            take = min(max(1, round(fraction * count)), count - 1)
            held_out[rng.permutation(members)[:take]] = True
        return Dataset(
            self.name,
            train=self.train.subset(np.flatnonzero(~held_out)),
            test=self.train.subset(np.flatnonzero(held_out)),
        )
