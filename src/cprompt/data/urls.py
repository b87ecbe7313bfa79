"""Files by URL, such as s3://bucket/cat.jpg, through fsspec and whatever it has installed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from cprompt.data.image_files import is_listed, refuse_special
from cprompt.errors import DataError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_url(place: object) -> bool:
    """Whether it is a text with a scheme; C:\\photos has none.

    >>> is_url("s3://bucket/photos"), is_url("photos/cat")
    (True, False)
    """
    return isinstance(place, str) and _SCHEME.match(place) is not None


def file_system(url: str) -> tuple[Any, str]:
    """The file system that a URL is on, and the path there."""
    import fsspec

    scheme = url.partition("://")[0]
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise DataError(
            f"needs a package that is not installed ({error})", file=url, hint="install it with pip"
        ) from error
    except ValueError as error:
        raise DataError(
            f"cannot be read, fsspec does not know {scheme}:// ({error})",
            file=url,
            hint="use file://, s3://, gs://, http:// or another of fsspec's",
        ) from error
    return system, path


@contextmanager
def opened(place: str) -> Iterator[BinaryIO]:
    """A URL or a local path, open for reading; a DataError if that fails."""
    try:
        if is_url(place):
            system, path = file_system(place)
            if _is_local(system):
                refuse_special(os.stat(path), place)  # opening a pipe waits for a writer
            with system.open(path, "rb") as file:
                yield file
        else:
            refuse_special(os.stat(place), place)
            with open(place, "rb") as file:
                yield file
    except FileNotFoundError as error:
        raise DataError(
            "does not exist", file=place, hint="check the path and who may read it"
        ) from error
    except OSError as error:
        raise DataError(
            f"cannot be opened ({error.strerror or error})",
            file=place,
            hint="check its permissions and the connection",
        ) from error


def _is_local(system: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(system, LocalFileSystem)


def files_below(url: str) -> list[str]:
    """The URL of every file below `url`, hidden ones apart, in the order of their paths."""
    system, root = file_system(url)
    try:
        found = system.find(root)
    except OSError as error:
        raise DataError(f"cannot be listed ({error})", file=url) from error
    below = []
    for path in found:
        inside = PurePosixPath(path).relative_to(PurePosixPath(root))
        if all(is_listed(part) for part in inside.parts):
            below.append(inside)
    return [f"{url.rstrip('/')}/{inside.as_posix()}" for inside in sorted(below, key=str)]


def is_folder(url: str) -> bool:
    """Whether there is something below `url`, and not a file there."""
    system, path = file_system(url)
    try:
        return bool(system.isdir(path))
    except OSError as error:
        raise DataError(f"cannot be reached ({error})", file=url) from error


def matching(url: str) -> list[str]:
    """The URLs that a pattern with * stands for, in order."""
    system, path = file_system(url)
    try:
        return sorted(system.unstrip_protocol(each) for each in system.glob(path))
    except OSError as error:
        raise DataError(f"cannot be listed ({error})", file=url) from error
