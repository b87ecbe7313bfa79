"""Images in tar files as WebDataset writes them: KEY.jpg, and KEY.cls or KEY.txt with its label."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from cprompt.data.image_files import IMAGE_SUFFIXES, is_listed
from cprompt.data.urls import opened
from cprompt.errors import DataError

SUFFIX = ".tar"
_LABELS = (".cls", ".txt")
"""Where both are there, the first counts: the other is then often a caption."""


@dataclass(frozen=True)
class TarImage:
    """One image in a tar file, read when it is asked for."""

    tar: str
    """A path or a URL."""
    name: str
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.tar}/{self.name}"

    def read(self) -> bytes:
        """The bytes of the image file."""
        with opened(self.tar) as file:
            file.seek(self.offset)
            data = file.read(self.size)
        if len(data) != self.size:
            raise DataError("ends in the middle of the image", file=str(self), hint="copy it again")
        return data


@dataclass(frozen=True)
class TarEntry:
    """An image, and its label if the tar file has one."""

    image: TarImage
    label: str | None


def read_index(tar: str) -> list[TarEntry]:
    """The images of a tar file in its order; of the images only headers are read."""
    images: dict[str, TarImage] = {}
    labels: dict[tuple[str, str], str] = {}
    try:
        with opened(tar) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                if not member.isfile() or not all(is_listed(part) for part in path.parts):
                    continue
                stem, dot, ending = path.name.partition(".")
                key, suffix = str(path.with_name(stem or path.name)), (dot + ending).lower()
                if suffix in _LABELS:
                    content = archive.extractfile(member)
                    assert content is not None
                    told = content.read().decode("utf-8").strip()
                    if labels.setdefault((key, suffix), told) != told:
                        raise _twice(tar, "label", key)
                elif suffix in IMAGE_SUFFIXES:
                    if key in images:
                        raise _twice(tar, "image", key)
                    images[key] = TarImage(tar, member.name, member.offset_data, member.size)
    except (tarfile.TarError, UnicodeDecodeError) as error:
        raise DataError(
            f"is not a plain tar file, or is damaged ({error})",
            file=tar,
            hint="write it again; a compressed one must be unpacked first",
        ) from error
    if not images:
        raise DataError("has no image in it", file=tar, hint="expected KEY.jpg and KEY.cls")
    return [TarEntry(image, _label(labels, key)) for key, image in images.items()]


def _label(labels: Mapping[tuple[str, str], str], key: str) -> str | None:
    return next((labels[key, suffix] for suffix in _LABELS if (key, suffix) in labels), None)


def _twice(tar: str, what: str, key: str) -> DataError:
    return DataError(
        f"has more than one {what} of the key {key}",
        file=tar,
        hint="give every image a key of its own: KEY.jpg and KEY.cls",
    )
