"""The checks: each looks for one kind of problem and returns those it finds."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from cprompt.data import near_duplicates
from cprompt.data.datasets import folder
from cprompt.data.doctor.digests import ImageDigest
from cprompt.data.image_files import IMAGE_SUFFIXES, is_listed
from cprompt.data.image_set import Dataset
from cprompt.data.registry import Counts, DatasetInfo
from cprompt.errors import counted, plural

FEW = 5
"""A class with fewer training images than this gets a warning."""


@dataclass(frozen=True)
class Problem:
    """One kind of thing that is wrong with a dataset, with every place where it was found.

    An error stops training sooner or later; a warning means that results may mislead. Each of
    `findings` is a file (with the reason if it cannot be read), a class, or files with equal
    images, joined by " = ".
    """

    severity: Literal["error", "warning"]
    message: str
    findings: tuple[str, ...]
    hint: str
    kind: Literal["", "alike"] = ""
    """"alike": each finding is a group of images that look the same; see `look_alikes`."""


def unreadable(images: Sequence[ImageDigest]) -> list[Problem]:
    """Images that cannot be decoded."""
    broken = [p for p in images if p.error is not None]
    if not broken:
        return []
    return [
        Problem(
            "error",
            f"{counted(len(broken), 'image')} cannot be read",
            tuple(str(p.error) for p in broken),
            "re-copy or delete them; where a list names them, take them out of the list too",
        )
    ]


def duplicates(
    images: Sequence[ImageDigest], published: bool, learnt_as_one: bool = False
) -> list[Problem]:
    """Equal images on both sides of the split, and equal training images of two classes.

    Published datasets, such as CIFAR-100, have some, and published results include them. Images
    that are `learnt_as_one` batch, by `cprompt learn`, cannot be in two classes.
    """
    keep = "leave them if the published dataset has them too, or results cannot be compared"
    problems = []
    same_file = _groups(images, lambda p: p.stored)
    same_pixels = [g for g in _groups(images, lambda p: p.pixels) if len({p.stored for p in g}) > 1]
    for groups, how in ((same_file, "as the same file"), (same_pixels, "with the same pixels")):
        leaks = [g for g in groups if len({p.part for p in g}) > 1]
        if leaks:
            problems.append(
                Problem(
                    "warning",
                    f"{counted(len(leaks), 'image is', 'images are')} both in train and in test, "
                    f"{how}",
                    tuple(" = ".join(p.name for p in g) for g in leaks),
                    keep if published else "delete one of each; they make the accuracy too high",
                )
            )
    train = _groups([p for p in images if p.part == "train"], lambda p: p.pixels)
    torn = [g for g in train if len({p.label for p in g}) > 1]
    if torn:
        problems.append(
            Problem(
                "error" if learnt_as_one else "warning",
                f"{len(torn)} training images are in several classes",
                tuple(" = ".join(p.name for p in g) for g in torn),
                keep if published else "keep each only in the class that it shows",
            )
        )
    return problems


def look_alikes(images: Sequence[ImageDigest]) -> list[Problem]:
    """Images with other pixels that look the same: resized, recompressed, or taken in a burst.

    Groups whose pixels are all equal are in `duplicates`.
    """
    if len(images) > near_duplicates.MOST:
        return []
    shown = [image for image in images if image.look is not None]
    looks = np.array([image.look for image in shown]).reshape(len(shown), 16, 17, 3)
    groups = [[shown[i] for i in group] for group in near_duplicates.look_alikes(looks)]
    groups = [group for group in groups if len({image.pixels for image in group}) > 1]
    torn = [group for group in groups if len({image.label for image in group}) > 1]
    problems = []
    for found, what, hint in (
        (torn, "in several classes", "look at them; one of the labels may be wrong"),
        (
            [group for group in groups if group not in torn],
            "in one class",
            "keep one of each; the others teach little, and in a test they mislead",
        ),
    ):
        if found:
            problems.append(
                Problem(
                    "warning",
                    f"{counted(len(found), 'group of images looks', 'groups of images look')} "
                    f"the same, {what}",
                    tuple(" = ".join(image.name for image in group) for group in found),
                    hint,
                    kind="alike",
                )
            )
    return problems


def _groups(
    images: Iterable[ImageDigest], key: Callable[[ImageDigest], bytes]
) -> list[list[ImageDigest]]:
    """Images with the same key, where there are several."""
    found: defaultdict[bytes, list[ImageDigest]] = defaultdict(list)
    for image in images:
        found[key(image)].append(image)
    return [group for group in found.values() if len(group) > 1]


def thin_classes(dataset: Dataset) -> list[Problem]:
    """Classes with few training images, and classes without a test image."""
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
                f"{counted(len(few), 'class has', 'classes have')} fewer than {FEW} training "
                "images",
                tuple(few),
                "add images; so few are seldom enough to recognise a class",
            )
        )
    if untested and len(dataset.test):  # without any, there is no test
        problems.append(
            Problem(
                "warning",
                f"{counted(len(untested), 'class has', 'classes have')} no test image",
                tuple(untested),
                "add some; their accuracy is unknown, and the mean leaves them out",
            )
        )
    return problems


def unexpected_counts(dataset: Dataset, info: DatasetInfo) -> list[Problem]:
    """A copy that is incomplete, or a variant of a published dataset."""
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


def ignored_files(dataset: Dataset) -> list[Problem]:
    """Files that lie among the images and are not read as images, such as .cr2."""
    folders = {
        source.parent
        for part in (dataset.train, dataset.test)
        for source in part.images
        if isinstance(source, Path)
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
            f"{counted(len(others), 'file')} among the images "
            f"{plural(len(others), 'is', 'are')} ignored ({shown})",
            tuple(others),
            "convert them to JPEG or PNG if they are images",
        )
    ]


def layout(root: Path) -> list[Problem]:
    """What may not be meant in a folder of class folders, or in its parts."""
    return [
        Problem("warning", odd.message, odd.places, odd.hint)
        for part in folder.train_and_test(root) or (root,)
        for odd in folder.oddities(part)
    ]
