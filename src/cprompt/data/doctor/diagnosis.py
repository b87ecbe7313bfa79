"""A dataset on disk, examined: what is there, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cprompt.data import splits
from cprompt.data.datasets import folder
from cprompt.data.doctor import checks
from cprompt.data.doctor.checks import Problem
from cprompt.data.doctor.digests import digest_images
from cprompt.data.image_set import Dataset
from cprompt.data.registry import DATASETS, Counts, load_dataset
from cprompt.data.splits import MissingImagesError
from cprompt.errors import DataError, counted

_SPLIT_OPTIONS = {"test_fraction", "seed"}
"""Options of the dataset `folder` that ask for a split."""


@dataclass(frozen=True)
class PerClass:
    """How many images the classes of one part have."""

    minimum: int
    median: float
    maximum: int


@dataclass(frozen=True)
class Diagnosis:
    """What was found; counts are None where the dataset could not be loaded.

    Plain class folders are one part: they count as training images, and `test_per_class` is None.
    """

    dataset: str
    counts: Counts | None
    train_per_class: PerClass | None
    test_per_class: PerClass | None
    classes: tuple[str, ...]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether training can go through: there is no error, whatever the warnings."""
        return not any(problem.severity == "error" for problem in self.problems)


def diagnose(
    dataset_name: str,
    root: Path | None = None,
    *,
    workers: int = 2,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Diagnosis:
    """Load a dataset and decode every image of it, in `workers` threads.

    `options` are those of the dataset. `progress` is called with the number of images decoded
    and of all images, from the calling thread. A broken dataset is reported, never raised;
    an unknown dataset or option is a ConfigError. Plain class folders are not split, unless
    `options` say how.
    """
    dataset, problems = _load(dataset_name, root, options)
    if dataset is None:
        return Diagnosis(dataset_name, None, None, None, (), tuple(problems))
    whole = dataset_name == "folder" and not _SPLIT_OPTIONS & options.keys() and _is_plain(root)
    if whole:
        dataset = _unsplit(dataset)
    images = digest_images(dataset, max(1, workers), progress or (lambda done, total: None))
    info = DATASETS[dataset_name]
    readable = [image for image in images if image.error is None]
    problems += checks.unreadable(images)
    problems += checks.duplicates(
        readable, published=info.expected is not None, learnt_as_one=whole
    )
    if info.expected is None:  # published datasets stay as they are
        problems += checks.look_alikes(readable)
    problems += checks.thin_classes(dataset)
    problems += checks.unexpected_counts(dataset, info)
    problems += checks.ignored_files(dataset)
    if dataset_name == "folder" and root is not None:
        problems += checks.layout(Path(root).expanduser())
    return Diagnosis(
        dataset.name,
        Counts(len(dataset.train), len(dataset.test), len(dataset.classes)),
        _per_class(dataset.train.per_class()),
        None if whole else _per_class(dataset.test.per_class()),
        dataset.classes,
        tuple(problems),
    )


def _is_plain(root: Path | None) -> bool:
    """Whether the folder has class folders directly, not in parts for training and testing."""
    return root is not None and folder.train_and_test(Path(root).expanduser()) is None


def _unsplit(dataset: Dataset) -> Dataset:
    """All images as training images, by class and path."""
    rows = sorted(
        (int(label), Path(str(image)))
        for part in (dataset.train, dataset.test)
        for image, label in zip(part.images, part.labels, strict=True)
    )
    listed = [(path, label) for label, path in rows]
    return splits.dataset(dataset.name, dataset.classes, listed, [])


def _load(
    name: str, root: Path | None, options: dict[str, Any]
) -> tuple[Dataset | None, list[Problem]]:
    """The dataset, without listed images that are missing, or None; and why."""
    problems: list[Problem] = []
    try:
        return load_dataset(name, root, **options), problems
    except MissingImagesError as error:
        problems.append(
            Problem(
                "error",
                f"{counted(len(error.files), 'listed image is', 'listed images are')} not on disk",
                tuple(str(file) for file in error.files),
                'complete the copy, or pass missing="skip" to go on without them',
            )
        )
    except DataError as error:
        return None, [_unloadable(error)]
    try:
        return load_dataset(name, root, **{**options, "missing": "skip"}), problems
    except DataError as error:
        return None, [*problems, _unloadable(error)]


def _unloadable(error: DataError) -> Problem:
    return Problem("error", str(error), (), "correct this, then run the doctor again")


def _per_class(counts: NDArray[np.int64]) -> PerClass:
    return PerClass(int(counts.min()), float(np.median(counts)), int(counts.max()))
