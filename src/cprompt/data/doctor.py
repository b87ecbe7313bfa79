"""What is wrong with a dataset on disk: every image is decoded, and everything wrong is named."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cprompt.data.image_files import IMAGE_SUFFIXES, is_listed, read_image
from cprompt.data.image_set import Dataset
from cprompt.data.registry import DATASETS, Counts, DatasetInfo, load_dataset
from cprompt.data.splits import MissingImagesError
from cprompt.errors import DataError

FEW = 5
"""A class with fewer training images than this gets a warning."""


@dataclass(frozen=True)
class Problem:
    """One kind of thing that is wrong.

    An error stops training sooner or later; a warning means that results may mislead. Each entry
    of `files` is one finding: a file, if it cannot be read with the reason after it; a class; or
    files with equal images, joined by " = ".
    """

    severity: Literal["error", "warning"]
    what: str
    files: tuple[str, ...]
    remedy: str


@dataclass(frozen=True)
class PerClass:
    """How many images the classes of one part have."""

    minimum: int
    median: float
    maximum: int


@dataclass(frozen=True)
class Report:
    """What was found; `counts` and what is per class are None where nothing could be loaded."""

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


@dataclass(frozen=True)
class _Image:
    """What is kept of one decoded image: digests of its file and its pixels, or the error."""

    name: str
    part: str
    label: int
    stored: bytes = b""
    pixels: bytes = b""
    error: str | None = None


def examine(
    dataset_name: str,
    root: Path | None = None,
    *,
    workers: int = 2,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Report:
    """Load a dataset and decode every image of it, in `workers` threads.

    `options` are those of the dataset. `progress` is called with the number of images decoded
    and of all images, from the calling thread. A broken dataset is reported, never raised;
    an unknown dataset or option is a ConfigError.
    """
    problems: list[Problem] = []
    dataset: Dataset | None = None
    try:
        dataset = load_dataset(dataset_name, root, **options)
    except MissingImagesError as error:
        problems.append(
            Problem(
                "error",
                f"{len(error.files)} listed images are not on disk",
                tuple(str(file) for file in error.files),
                'complete the copy, or pass missing="skip" to go on without them',
            )
        )
        try:
            dataset = load_dataset(dataset_name, root, **{**options, "missing": "skip"})
        except DataError as second:
            problems.append(_unloadable(second))
    except DataError as error:
        problems.append(_unloadable(error))
    if dataset is None:
        return Report(dataset_name, None, None, None, (), tuple(problems))

    pictures = _decode_all(dataset, max(1, workers), progress or (lambda done, total: None))
    problems += _unreadable(pictures)
    info = DATASETS[dataset_name]
    problems += _duplicates([p for p in pictures if p.error is None], published=bool(info.expected))
    problems += _thin_classes(dataset)
    problems += _unexpected(dataset, info)
    problems += _bystanders(dataset)
    return Report(
        dataset.name,
        Counts(len(dataset.train), len(dataset.test), len(dataset.classes)),
        _per_class(dataset.train.per_class()),
        _per_class(dataset.test.per_class()),
        dataset.classes,
        tuple(problems),
    )


def _unloadable(error: DataError) -> Problem:
    return Problem("error", str(error), (), "correct this, then run the doctor again")


def _per_class(counts: np.ndarray[Any, np.dtype[np.int64]]) -> PerClass:
    return PerClass(int(counts.min()), float(np.median(counts)), int(counts.max()))


def _decode_all(
    dataset: Dataset, workers: int, progress: Callable[[int, int], None]
) -> list[_Image]:
    """Every image, training images first, in the order of the dataset."""
    parts = [("train", dataset.train), ("test", dataset.test)]
    jobs = [
        (part, index, images.images[index], int(images.labels[index]))
        for part, images in parts
        for index in range(len(images))
    ]

    def decode(job: tuple[str, int, Path | np.ndarray[Any, Any], int]) -> _Image:
        part, index, picture, label = job
        if not isinstance(picture, Path):
            digest = _digest(picture.shape, picture.tobytes())
            return _Image(f"{part}[{index}]", part, label, digest, digest)
        try:
            image = read_image(picture)
        except DataError as error:
            return _Image(str(picture), part, label, error=f"{picture}: {error.message}")
        stored = _digest(None, picture.read_bytes())
        return _Image(str(picture), part, label, stored, _digest(image.size, image.tobytes()))

    pictures = []
    with ThreadPoolExecutor(workers) as pool:
        for picture in pool.map(decode, jobs):
            pictures.append(picture)
            progress(len(pictures), len(jobs))
    return pictures


def _digest(shape: Hashable, content: bytes) -> bytes:
    return hashlib.blake2b(repr(shape).encode() + content, digest_size=16).digest()


def _unreadable(pictures: Sequence[_Image]) -> list[Problem]:
    broken = [p for p in pictures if p.error is not None]
    if not broken:
        return []
    return [
        Problem(
            "error",
            f"{len(broken)} images cannot be read",
            tuple(str(p.error) for p in broken),
            "re-copy or delete them; where a list names them, take them out of the list too",
        )
    ]


def _duplicates(pictures: Sequence[_Image], published: bool) -> list[Problem]:
    """Equal images on both sides of the split, and equal training images of two classes.

    Published datasets have some, CIFAR-100 for one, and are compared with them in place.
    """
    keep = "leave them if the published dataset has them too, or results cannot be compared"
    problems = []
    same_file = _groups(pictures, lambda p: p.stored)
    same_pixels = [
        g for g in _groups(pictures, lambda p: p.pixels) if len({p.stored for p in g}) > 1
    ]
    for groups, how in ((same_file, "as the same file"), (same_pixels, "with the same pixels")):
        leaks = [g for g in groups if len({p.part for p in g}) > 1]
        if leaks:
            problems.append(
                Problem(
                    "warning",
                    f"{len(leaks)} images are both in train and in test, {how}",
                    tuple(" = ".join(p.name for p in g) for g in leaks),
                    keep if published else "delete one of each; they make the accuracy too high",
                )
            )
    train = _groups([p for p in pictures if p.part == "train"], lambda p: p.pixels)
    torn = [g for g in train if len({p.label for p in g}) > 1]
    if torn:
        problems.append(
            Problem(
                "warning",
                f"{len(torn)} training images are in several classes",
                tuple(" = ".join(p.name for p in g) for g in torn),
                keep if published else "keep each only in the class that it shows",
            )
        )
    return problems


def _groups(pictures: Iterable[_Image], key: Callable[[_Image], bytes]) -> list[list[_Image]]:
    """Images with the same key, where there are several."""
    found: defaultdict[bytes, list[_Image]] = defaultdict(list)
    for picture in pictures:
        found[key(picture)].append(picture)
    return [group for group in found.values() if len(group) > 1]


def _thin_classes(dataset: Dataset) -> list[Problem]:
    named = list(zip(dataset.classes, dataset.train.per_class(), strict=True))
    few = [f"{name} ({count})" for name, count in named if count < FEW]
    untested = [
        name for name, n in zip(dataset.classes, dataset.test.per_class(), strict=True) if n == 0
    ]
    problems = []
    if few:
        problems.append(
            Problem(
                "warning",
                f"{len(few)} classes have fewer than {FEW} training images",
                tuple(few),
                "add images; so few are seldom enough to recognise a class",
            )
        )
    if untested:
        problems.append(
            Problem(
                "warning",
                f"{len(untested)} classes have no test image",
                tuple(untested),
                "add some; their accuracy is unknown, and the mean leaves them out",
            )
        )
    return problems


def _unexpected(dataset: Dataset, info: DatasetInfo) -> list[Problem]:
    if info.expected is None:
        return []
    if dataset.name != info.name:
        return [
            Problem(
                "warning",
                f"this is {dataset.name}, a variant of {info.name}",
                (),
                "fine for trying things out; published results are for the official split",
            )
        ]
    found = Counts(len(dataset.train), len(dataset.test), len(dataset.classes))
    if found == info.expected:
        return []
    described = [
        f"{c.train:,} training images, {c.test:,} test images, {c.classes} classes"
        for c in (found, info.expected)
    ]
    return [
        Problem(
            "warning",
            f"found {described[0]}; a complete {info.name} has {described[1]}",
            (),
            "complete the copy; until then results cannot be compared with published ones",
        )
    ]


def _bystanders(dataset: Dataset) -> list[Problem]:
    """Files that lie among the images and are not taken for images, such as .heic."""
    folders = {
        picture.parent
        for part in (dataset.train, dataset.test)
        for picture in part.images
        if isinstance(picture, Path)
    }
    others = sorted(
        entry.path
        for place in folders
        if place.is_dir()
        for entry in os.scandir(place)
        if entry.is_file()
        and is_listed(entry.name)
        and Path(entry.name).suffix.lower() not in IMAGE_SUFFIXES
    )
    if not others:
        return []
    suffixes = Counter(Path(path).suffix.lower() or "no ending" for path in others)
    shown = ", ".join(f"{count} × {suffix}" for suffix, count in suffixes.most_common())
    return [
        Problem(
            "warning",
            f"{len(others)} files among the images are ignored ({shown})",
            tuple(others),
            "convert them to JPEG or PNG if they are images",
        )
    ]
