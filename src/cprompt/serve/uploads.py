"""Labelled photos of one request, stored for a job.

Nothing is ever written to a path that a client names: a file gets a number in a private folder,
and its own name is used in messages only.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cprompt.errors import counted
from cprompt.serve.config import Limits
from cprompt.serve.deadlines import Deadline
from cprompt.serve.errors import RequestError
from cprompt.serve.images import check_image
from cprompt.serve.names import clean_label

CHUNK = 1 << 16
"""Bytes copied at a time."""


@dataclass(frozen=True)
class UploadedPhoto:
    """A labelled photo in a private folder; `name` is what its sender calls it."""

    path: Path
    label: str
    name: str


@dataclass(frozen=True)
class Upload:
    """The photos that a request brought; `skipped` names files that are not images."""

    photos: list[UploadedPhoto]
    skipped: list[str]

    def per_class(self) -> dict[str, int]:
        """Photos per class, in order of first appearance."""
        return dict(Counter(photo.label for photo in self.photos))

    def sent_names(self) -> dict[str, str]:
        """The sender's name of each file, by its private path."""
        return {str(photo.path): photo.name for photo in self.photos}


def numbered_path(folder: Path, number: int) -> Path:
    """Where photo `number` of an upload is stored."""
    return folder / f"{number:06d}"


def store_labelled(
    files: Sequence[tuple[BinaryIO, str]],
    labels: Sequence[str],
    folder: Path,
    limits: Limits,
    deadline: Deadline,
) -> Upload:
    """Check (file, name) pairs and copy them into `folder`; one label each, or one for all."""
    if len(labels) not in (1, len(files)):
        raise RequestError(
            422,
            "labels_do_not_match",
            f"{counted(len(files), 'image')} came with {counted(len(labels), 'label')}; send as "
            "many `label` fields as `images`, in the same order, or a single one for all",
        )
    clean = [clean_label(label, limits) for label in labels]
    if len(clean) == 1:
        clean *= len(files)
    photos: list[UploadedPhoto] = []
    for (file, name), label in zip(files, clean, strict=True):
        deadline.check()
        check_image(file, name, limits)
        photo = UploadedPhoto(numbered_path(folder, len(photos)), label, name)
        with photo.path.open("xb") as copy:
            shutil.copyfileobj(file, copy, CHUNK)
        photos.append(photo)
    return Upload(photos, [])
