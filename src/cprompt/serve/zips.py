"""Uploaded zips of class folders: unpacked into a private folder, every entry checked."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from cprompt.serve.config import Limits
from cprompt.serve.deadlines import Deadline
from cprompt.serve.errors import RequestError, from_os_error
from cprompt.serve.images import check_image
from cprompt.serve.names import clean_label
from cprompt.serve.uploads import CHUNK, Upload, UploadedPhoto, numbered_path
from cprompt.serve.zip_entries import PhotoEntry, nested_archive, photo_entries, too_many_entries

ClassFolder = Literal["outer", "inner"]
"""Which folder names the class where all photos are two or more folders deep inside one."""

_TABLE_BYTES = 1024  # that a zip's table of contents may take per entry
_ZIP_BEGINS = b"PK\x03\x04"


def store_zip(
    file: BinaryIO,
    name: str,
    folder: Path,
    limits: Limits,
    deadline: Deadline,
    class_folder: ClassFolder | None = None,
) -> Upload:
    """Check a zip of class folders and copy its images into `folder`.

    The first folder of an entry's path is its class; folders below belong to the class. A zip
    whose photos all lie in several folders inside a single one is ambiguous (a packed folder of
    classes, or one class in parts) and refused unless `class_folder` says which it is.
    """
    with _zip_errors(name), zipfile.ZipFile(_BoundedReads(file, name, limits)) as archive:
        entries, skipped = photo_entries(archive.infolist(), name, limits)
        level = _class_level(entries, name, class_folder)
        photos: list[UploadedPhoto] = []
        for entry in entries:
            deadline.check()
            label = clean_label(entry.parts[level], limits, entry.name)
            photo = UploadedPhoto(numbered_path(folder, len(photos)), label, entry.name)
            _unpack(archive, entry, photo.path, deadline)
            with photo.path.open("rb") as unpacked:
                if unpacked.read(len(_ZIP_BEGINS)) == _ZIP_BEGINS:
                    raise nested_archive(entry.name)
                check_image(unpacked, entry.name, limits)
            photos.append(photo)
    return Upload(photos, skipped)


class _BoundedReads(io.BufferedIOBase):
    """A zip file that refuses a single read larger than a plausible table of contents.

    Python's zipfile reads the whole table and makes an object of each entry before one can ask how
    many there are; a table of 200 MB would take gigabytes.
    """

    def __init__(self, file: BinaryIO, name: str, limits: Limits) -> None:
        self._file = file
        self._name = name
        self._limits = limits

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > max(self._limits.max_files * _TABLE_BYTES, 2 * CHUNK):
            raise too_many_entries(self._name, self._limits)
        return self._file.read(-1 if size is None else size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _class_level(entries: Sequence[PhotoEntry], zip_name: str, given: ClassFolder | None) -> int:
    """Which part of the paths names the class: 0, or 1 inside a folder around all of them."""
    paths = [entry.parts for entry in entries]
    wrapped = len({parts[0] for parts in paths}) == 1
    deep = all(len(parts) > 2 for parts in paths)
    inner = {parts[1] for parts in paths if len(parts) > 2}
    if given == "inner":
        if not (wrapped and deep):
            raise RequestError(
                422,
                "no_class_folder",
                f"class_folder=inner, but some photos of {zip_name} are not two folders deep",
                file=zip_name,
            )
        return 1
    if given is None and wrapped and deep and len(inner) > 1:
        outer = paths[0][0]
        raise RequestError(
            422,
            "which_folder",
            f"all photos of {zip_name} are in folders inside {outer!r}: send class_folder=inner if "
            f"each of those is a class, or class_folder=outer if all photos show class {outer!r}",
            file=zip_name,
            rule="one folder per class",
        )
    return 0


def _unpack(archive: zipfile.ZipFile, entry: PhotoEntry, path: Path, deadline: Deadline) -> None:
    with archive.open(entry.info) as packed, path.open("xb") as out:
        while chunk := packed.read(CHUNK):
            deadline.check()
            out.write(chunk)


@contextmanager
def _zip_errors(name: str) -> Iterator[None]:
    """Whatever a broken zip does to zipfile, as a RequestError."""
    try:
        yield
    except (RequestError, MemoryError):
        raise
    except OSError as error:
        # A full disk, or an error that names a file: the service's own, not the zip's.
        if from_os_error(error) is not None or error.filename is not None:
            raise
        raise _bad_zip(name, error.strerror or type(error).__name__) from error
    except Exception as error:  # a broken zip meets zipfile with almost any exception
        raise _bad_zip(name, error) from error


def _bad_zip(name: str, why: object) -> RequestError:
    message = f"{name} is not a zip that can be read ({why})"
    return RequestError(422, "bad_zip", message, file=name, rule="an intact zip")
