"""Decoded images kept on disk, so that a later run does not decode them again.

A set on disk is one file of raw bytes and an index beside it. They are named by the content of all
the set's image files, which are read and hashed at every opening: that is cheap next to decoding,
and what is found is never stale.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cprompt.data.image_files import decode_image, formats, opened_image
from cprompt.data.image_set import ImageSet
from cprompt.data.pipeline.decoded import (
    DecodedImages,
    ImageArray,
    Progress,
    from_array,
    from_files,
)
from cprompt.data.pipeline.parallel import DECODING_THREADS, map_in_order
from cprompt.errors import DataError
from cprompt.files import cache_home
from cprompt.settings import check, setting

_VERSION = 3
_DATA, _INDEX, _PART = ".rgb", ".json", ".part"
_OURS = re.compile(r"[0-9a-f]{40}\.(rgb|json|\w+\.part)")
_GIB = 2**30
_SPARE = 2 * _GIB  # of the disk, left free for others


@dataclass(frozen=True)
class CacheConfig:
    """Where decoded images are kept; changes how fast they come, never what they look like."""

    where: Literal["disk", "memory", "off"] = setting(
        "disk", "decoded images stay on disk for later runs, in memory for this one, or nowhere"
    )
    folder: str | None = setting(
        None, "folder on disk; by default cprompt in $XDG_CACHE_HOME or ~/.cache"
    )
    disk_gib: float = setting(32.0, "room on disk for all sets together; others are not kept")
    device_gib: float | None = setting(
        None, "room on a CUDA device for one set; by default half of what is free, 0 for none"
    )

    def __post_init__(self) -> None:
        check(self.disk_gib >= 0, f"disk_gib {self.disk_gib} must not be negative")
        check(
            self.device_gib is None or self.device_gib >= 0,
            f"device_gib {self.device_gib} must not be negative",
        )

    @property
    def path(self) -> Path:
        """The folder that holds the cached sets and nothing else."""
        if self.folder is not None:
            return Path(self.folder) / "pixels"
        return cache_home() / "pixels"


class CachedSet(NamedTuple):
    """A set on disk."""

    name: str
    bytes: int
    created: float
    """Seconds since 1970."""
    source: str
    """The folder its images were read from."""


def open_images(
    images: ImageSet, cache: CacheConfig, progress: Progress | None = None
) -> DecodedImages:
    """The decoded images of a set: decoded now, unless they are cached or have no room.

    `progress` is told of every image that had to be decoded.
    """
    if isinstance(images.images, np.ndarray):
        return from_array(images.images)
    files = list(images.images)
    if cache.where == "memory" or not files:
        return from_files(files).in_memory(progress)
    if cache.where == "disk" and (mapped := _on_disk(files, cache, progress)):
        return mapped
    return from_files(files)


def cached(folder: Path) -> list[CachedSet]:
    """The complete sets in `folder` (see `CacheConfig.path`), newest first."""
    found = []
    for index in _ours(folder, _INDEX):
        data = index.with_suffix(_DATA)
        with suppress(OSError, ValueError, KeyError):
            source = str(json.loads(index.read_bytes())["source"])
            about = data.stat()
            found.append(CachedSet(index.stem, about.st_size, about.st_mtime, source))
    return sorted(found, key=lambda each: -each.created)


def clear(folder: Path) -> int:
    """Delete every set in `folder`, and what a killed process left there; return bytes freed."""
    freed = 0
    for path in sorted(_ours(folder), key=lambda path: path.suffix != _INDEX):
        freed += _size(path)
        path.unlink(missing_ok=True)
    return freed


def _on_disk(
    files: Sequence[Path], cache: CacheConfig, progress: Progress | None
) -> DecodedImages | None:
    """The set as a file mapped into memory, written first if needed; None if there is no room."""
    digests = list(map_in_order(_digest, files, DECODING_THREADS))
    whole = hashlib.blake2b(f"{_VERSION}:".encode() + b"".join(digests), digest_size=20)
    data = cache.path / f"{whole.hexdigest()}{_DATA}"
    sizes = _intact(data, len(files))
    if sizes is None:
        needed = sum(map_in_order(_decoded_bytes, files, DECODING_THREADS))
        if reason := _no_room(cache, needed):
            warnings.warn(
                f"{len(files)} images are decoded again in every epoch: {reason}; make room "
                "there, choose another folder, or keep them in memory",
                stacklevel=3,
            )
            return None
        sizes = _write(data, files, digests, progress)
    return _mapped(data, sizes)


def _mapped(data: Path, sizes: NDArray[np.int64]) -> DecodedImages:
    flat = np.asarray(np.memmap(data, np.uint8, mode="r"))
    ends = np.cumsum(3 * sizes.prod(axis=1))

    def load(i: int) -> ImageArray:
        height, width = sizes[i]
        return flat[ends[i] - 3 * height * width : ends[i]].reshape(height, width, 3)

    return DecodedImages(load, len(sizes), sizes)


def _write(
    data: Path, files: Sequence[Path], digests: Sequence[bytes], progress: Progress | None
) -> NDArray[np.int64]:
    """Decode all files into `data`, write its index, and return the sizes of the images."""
    shapes, checksums = [], []
    with _written(data) as out:
        for image in map_in_order(_decode, zip(files, digests, strict=True), DECODING_THREADS):
            pixels = np.ascontiguousarray(image).data
            out.write(pixels)
            shapes.append(image.shape[:2])
            checksums.append(zlib.crc32(pixels))
            if progress:
                progress(len(shapes), len(files))
    about = {"version": _VERSION, "source": _common_folder(files)}
    with _written(data.with_suffix(_INDEX)) as out:
        out.write(json.dumps({**about, "sizes": shapes, "checksums": checksums}).encode())
    return np.array(shapes, dtype=np.int64)


def _common_folder(files: Sequence[Path]) -> str:
    return os.path.commonpath([file.absolute().parent for file in files])


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name when all is written, and is deleted if anything fails.

    Its temporary name is unique, since another process may be writing the same set. It is not
    synced to disk: what a power cut leaves unwritten does not have the right checksums.
    """
    try:
        handle, name = tempfile.mkstemp(_PART, f"{path.stem}.", path.parent)
        try:
            with open(handle, "wb") as file:
                yield file
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DataError(
            f"cannot be written ({error.strerror})",
            file=path,
            hint="make room, choose another cache folder, or keep decoded images in memory or "
            "nowhere",
        ) from error


def _intact(data: Path, count: int) -> NDArray[np.int64] | None:
    """Sizes of the images in `data`, if file and index are of this version and undamaged."""
    try:
        about = json.loads(data.with_suffix(_INDEX).read_bytes())
        sizes = np.array(about["sizes"], dtype=np.int64)
        if about["version"] != _VERSION or sizes.shape != (count, 2) or sizes.min() < 1:
            return None
        if data.stat().st_size != 3 * sizes.prod(axis=1).sum():
            return None
        images = _mapped(data, sizes)
        found = list(
            map_in_order(lambda i: zlib.crc32(images[i].data), range(count), DECODING_THREADS)
        )
        return sizes if found == about["checksums"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _no_room(cache: CacheConfig, needed: int) -> str | None:
    """Why a set of `needed` bytes cannot be written; None if it can."""
    folder = cache.path
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        used = sum(_size(path) for path in _ours(folder))
        free = shutil.disk_usage(folder).free - _SPARE
    except OSError as error:
        return f"{folder} cannot be used ({error.strerror})"
    if used + needed > cache.disk_gib * _GIB:
        return (
            f"they take {needed / _GIB:.1f} GiB and {folder} already holds {used / _GIB:.1f}, "
            f"more than disk_gib {cache.disk_gib:g} together"
        )
    if needed > free:
        return (
            f"they take {needed / _GIB:.1f} GiB and the disk of {folder} has "
            f"{max(free, 0) / _GIB:.1f} to spare"
        )
    return None


def _ours(folder: Path, suffix: str = "") -> list[Path]:
    """Files that this module wrote in `folder`."""
    if not folder.is_dir():
        return []
    return [p for p in folder.iterdir() if _OURS.fullmatch(p.name) and p.name.endswith(suffix)]


def _size(path: Path) -> int:
    """Bytes of a file; 0 if another process has just renamed or deleted it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _digest(file: Path) -> bytes:
    return hashlib.blake2b(_read(file), digest_size=32).digest()


def _decode(file_and_digest: tuple[Path, bytes]) -> ImageArray:
    file, digest = file_and_digest
    content = _read(file)
    if hashlib.blake2b(content, digest_size=32).digest() != digest:
        raise DataError(
            "was changed while the images were being read", file=file, hint="start again"
        )
    return np.asarray(decode_image(io.BytesIO(content), str(file)))


def _decoded_bytes(file: Path) -> int:
    """Size once decoded, from the header; 0 if unreadable, since decoding it will say why."""
    try:
        with opened_image(file) as content, Image.open(content, formats=formats()) as image:
            return 3 * int(image.width) * int(image.height)
    except Exception:
        return 0


def _read(file: Path) -> bytes:
    with opened_image(file) as content:
        return content.read()
