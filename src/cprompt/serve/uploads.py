"""Uploads that nobody vouches for: images, labelled files and zips.

Nothing is ever written to a path that a client names: a file gets a number in a private folder,
and its own name is used in messages only.
"""

from __future__ import annotations

import io
import re
import shutil
import stat
import time
import unicodedata
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from PIL import Image, UnidentifiedImageError

from cprompt.classifier.photo_sources import class_name
from cprompt.classifier.photos import MAX_ASPECT
from cprompt.data.image_files import FORMATS, IMAGE_SUFFIXES, REMEDY, decode_image, is_listed
from cprompt.errors import DataError
from cprompt.serve.config import Limits
from cprompt.serve.errors import RequestError, from_os_error, timed_out

ClassFolder = Literal["outer", "inner"]
"""Which folder names the class where all photos are two or more folders deep inside one."""

_CHUNK = 1 << 16
_DIRECTORY_ENTRY = 1024  # bytes a zip's table of contents may take for each entry
_SMALL = 1_000_000  # below this many unpacked bytes a high compression ratio is no danger
_SHOWN_NAME = 200
_DRIVE = re.compile(r"[A-Za-z]:")
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
_ARCHIVES = frozenset({".zip", ".7z", ".rar", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".jar", ".zst"})
_TEXT_DIRECTION = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_UTF8_NAME = 0x800


@dataclass(frozen=True)
class Photo:
    """A labelled image in a private folder; `name` is what its sender calls it."""

    path: Path
    label: str
    name: str


@dataclass(frozen=True)
class Upload:
    """What a request brought; `skipped` names files that are no images."""

    photos: list[Photo]
    skipped: list[str]

    def per_class(self) -> dict[str, int]:
        """Photos of each class, in order of first appearance."""
        counts: dict[str, int] = {}
        for photo in self.photos:
            counts[photo.label] = counts.get(photo.label, 0) + 1
        return counts


class Deadline:
    """A moment after which work in a thread gives up."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raise a RequestError if the moment has passed."""
        if time.monotonic() > self._end:
            raise timed_out(self._seconds)


# --- images -----------------------------------------------------------------------------------


def check_image(file: BinaryIO, name: str, limits: Limits) -> tuple[int, int]:
    """Width and height of an image, from its header; a RequestError if it must not be decoded."""
    try:
        with Image.open(file, formats=FORMATS) as image:
            width, height = image.size
    except Image.DecompressionBombError:
        raise _too_many_pixels(name, limits) from None
    except UnidentifiedImageError:
        empty = file.seek(0, io.SEEK_END) == 0
        what = "is empty" if empty else f"is not an image that can be read ({', '.join(FORMATS)})"
        raise _not_a_image(name, what) from None
    except MemoryError:
        raise
    except Exception as error:  # decoders meet broken files with almost any exception
        raise _not_a_image(name, f"is damaged ({error})") from error
    finally:
        if not file.closed:
            file.seek(0)
    if width < 1 or height < 1:
        raise _not_a_image(name, f"is {width} x {height} pixels")
    if width * height > limits.max_pixels:
        raise _too_many_pixels(name, limits)
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise RequestError(
            422,
            "picture_too_long",
            f"{name} is {width} x {height} pixels, too long and thin to be a photo",
            file=name,
            rule=f"one side at most {MAX_ASPECT} times the other",
        )
    return width, height


def decode_upload(file: BinaryIO, name: str) -> Image.Image:
    """A checked image as upright RGB; a RequestError if it turns out to be damaged."""
    try:
        return decode_image(file, name)
    except DataError as error:
        raise RequestError(422, "not_a_picture", client_text(error), file=name) from error


def client_text(error: Exception) -> str:
    """An error's message without the advice for people at the service's own terminal."""
    return str(error).removesuffix(f"; {REMEDY}")


def _not_a_image(name: str, what: str) -> RequestError:
    rule = f"an image: {', '.join(FORMATS)}"
    return RequestError(422, "not_a_picture", f"{name} {what}", file=name, rule=rule)


def _too_many_pixels(name: str, limits: Limits) -> RequestError:
    return RequestError(
        413,
        "too_many_pixels",
        f"{name} has more than {limits.max_pixels:,} pixels; send a smaller version",
        file=name,
        rule=f"at most {limits.max_pixels:,} pixels",
    )


# --- names --------------------------------------------------------------------------------------


def shown_name(name: str | None) -> str:
    """A client's file name for messages: no folders, no control characters, not endless."""
    last = (name or "").replace("\\", "/").rsplit("/", 1)[-1]
    clean = "".join(c if c.isprintable() else "\ufffd" for c in last)[:_SHOWN_NAME]
    return clean or "the image"


def clean_label(label: str, limits: Limits, file: str | None = None) -> str:
    """A class name in one spelling (NFC, no outer spaces), or a RequestError."""

    def refuse(message: str, rule: str) -> RequestError:
        return RequestError(422, "bad_label", message, file=file, rule=rule)

    if len(label) > limits.max_label:
        rule = f"at most {limits.max_label} characters"
        raise refuse(f"the class name {label[: limits.max_label]!a}… is too long", rule)
    if any(sign in _TEXT_DIRECTION for sign in label):
        rule = "no characters that change the direction of text"
        raise refuse(f"the class name {label!a} would be shown as another", rule)
    try:
        return class_name(label.strip(), file or "label")
    except DataError as error:
        raise refuse(str(error), "a name of printable characters, not the reserved one") from error


# --- labelled files -----------------------------------------------------------------------------


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
            f"{len(files)} images came with {len(labels)} labels; send as many `label` fields "
            "as `images`, in the same order, or a single one for all",
        )
    clean = [clean_label(label, limits) for label in labels]
    if len(clean) == 1:
        clean *= len(files)
    photos: list[Photo] = []
    for (file, name), label in zip(files, clean, strict=True):
        deadline.check()
        check_image(file, name, limits)
        photo = Photo(folder / f"{len(photos):06d}", label, name)
        with photo.path.open("xb") as copy:
            shutil.copyfileobj(file, copy, _CHUNK)
        photos.append(photo)
    return Upload(photos, [])


# --- zips ---------------------------------------------------------------------------------------


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
    with _zip_errors(name), zipfile.ZipFile(_ZipFile(file, name, limits)) as archive:
        members, skipped = _members(archive.infolist(), name, limits)
        level = _class_level(members, name, class_folder)
        photos: list[Photo] = []
        for info, parts in members:
            deadline.check()
            shown = "/".join(parts)
            label = clean_label(parts[level], limits, shown)
            photo = Photo(folder / f"{len(photos):06d}", label, shown)
            _unpack(archive, info, photo.path, deadline)
            with photo.path.open("rb") as unpacked:
                if unpacked.read(4) == b"PK\x03\x04":
                    raise _nested(shown)
                check_image(unpacked, shown, limits)
            photos.append(photo)
    return Upload(photos, skipped)


class _ZipFile(io.BufferedIOBase):
    """A file of which at most a sane table of contents is read in one go.

    Python's zipfile reads the whole table and makes an object of each entry before one can ask how
    many there are; a table of 200 MB would take gigabytes.
    """

    def __init__(self, file: BinaryIO, name: str, limits: Limits) -> None:
        self._file = file
        self._name = name
        self._max_files = limits.max_files

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > max(self._max_files * _DIRECTORY_ENTRY, 2 * _CHUNK):
            raise _too_many_files(self._name, self._max_files)
        return self._file.read(-1 if size is None else size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _members(
    entries: Sequence[zipfile.ZipInfo], name: str, limits: Limits
) -> tuple[list[tuple[zipfile.ZipInfo, list[str]]], list[str]]:
    """The images with the parts of their paths, and the names of files that are none."""
    if len(entries) > limits.max_files:
        raise _too_many_files(name, limits.max_files)
    members: list[tuple[zipfile.ZipInfo, list[str]]] = []
    skipped: list[str] = []
    seen: set[str] = set()
    unpacked = 0
    for info in entries:
        path = _entry_name(info)
        _check_entry(info, path, limits)
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if info.is_dir() or path.endswith("/") or not all(map(is_listed, parts)) or not parts:
            continue
        shown = "/".join(parts)
        one_spelling = unicodedata.normalize("NFC", shown).casefold()
        if one_spelling in seen:
            raise RequestError(
                422,
                "duplicate_name",
                f"{shown} is twice in {name}",
                file=shown,
                rule="one entry a name",
            )
        seen.add(one_spelling)
        unpacked += info.file_size
        if unpacked > limits.max_unpacked:
            raise RequestError(
                413,
                "zip_too_large",
                f"{name} unpacks to more than {limits.max_unpacked:,} bytes",
                file=name,
                rule=f"at most {limits.max_unpacked:,} bytes unpacked",
            )
        suffix = Path(parts[-1]).suffix.lower()
        if suffix in _ARCHIVES:
            raise _nested(shown)
        if suffix not in IMAGE_SUFFIXES:
            skipped.append(shown)
        elif len(parts) < 2:
            raise RequestError(
                422,
                "no_class_folder",
                f"{shown} is in no folder of {name}; put photos into a folder for each class",
                file=shown,
                rule="a folder for each class",
            )
        else:
            members.append((info, parts))
    if not members:
        raise RequestError(
            422,
            "no_pictures",
            f"{name} has no images in class folders",
            file=name,
            rule="a folder for each class",
        )
    return members, skipped


def _entry_name(info: zipfile.ZipInfo) -> str:
    """The name as it was packed; many packers write UTF-8 without saying so."""
    name = info.orig_filename
    if not info.flag_bits & _UTF8_NAME:
        with suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    return name.replace("\\", "/")


def _check_entry(info: zipfile.ZipInfo, path: str, limits: Limits) -> None:
    shown = "".join(c if c.isprintable() else "\ufffd" for c in path)[:_SHOWN_NAME]

    def refuse(code: str, what: str, rule: str, status: int = 422) -> RequestError:
        return RequestError(status, code, f"{shown} {what}", file=shown, rule=rule)

    if "\0" in path:
        raise refuse("bad_path", "has a NUL character in its name", "no NUL in names")
    if path.startswith("/"):
        raise refuse("bad_path", "is an absolute path", "paths inside the zip")
    for part in path.split("/"):
        if part == "..":
            raise refuse("bad_path", "leads out of its folder", "no .. in paths")
        if _DRIVE.match(part):
            raise refuse("bad_path", "names a drive", "no drive letters in paths")
        if _DEVICES.fullmatch(part.rstrip(" .")):
            raise refuse("bad_path", "has the name of a device", "no names such as CON, NUL, COM1")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise refuse("bad_entry", "is a symbolic link", "files and folders only")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise refuse("bad_entry", "is not an ordinary file", "files and folders only")
    if info.flag_bits & _ENCRYPTED:
        raise refuse("encrypted", "is encrypted", "no passwords")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise refuse(
            "bad_entry", "is packed in an unusual way", "stored or deflated, as zip does by default"
        )
    if info.file_size > limits.max_body:
        rule = f"at most {limits.max_body:,} bytes a photo"
        raise refuse("file_too_large", "is too large", rule, 413)
    if info.file_size > _SMALL and info.file_size > limits.max_ratio * info.compress_size:
        rule = f"at most {limits.max_ratio} times its packed size"
        raise refuse("zip_bomb", "unpacks to far more than its packed size", rule, 413)


def _class_level(
    members: Sequence[tuple[zipfile.ZipInfo, list[str]]], name: str, given: ClassFolder | None
) -> int:
    """Which part of the paths names the class: 0, or 1 inside a folder around all of them."""
    wrapped = len({parts[0] for _, parts in members}) == 1
    deep = all(len(parts) > 2 for _, parts in members)
    inner = {parts[1] for _, parts in members if len(parts) > 2}
    if given == "inner":
        if not (wrapped and deep):
            raise RequestError(
                422,
                "no_class_folder",
                f"class_folder=inner, but some photos of {name} are not two folders deep",
                file=name,
            )
        return 1
    if given is None and wrapped and deep and len(inner) > 1:
        outer = members[0][1][0]
        raise RequestError(
            422,
            "which_folder",
            f"all photos of {name} are in folders inside {outer!r}: say class_folder=inner if each "
            f"of those is a class, or class_folder=outer if all photos are of class {outer!r}",
            file=name,
            rule="a folder for each class",
        )
    return 0


def _unpack(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, deadline: Deadline
) -> None:
    with archive.open(info) as packed, path.open("xb") as out:
        while chunk := packed.read(_CHUNK):
            deadline.check()
            out.write(chunk)


@contextmanager
def _zip_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (RequestError, MemoryError):
        raise
    except OSError as error:
        if from_os_error(error) is not None:  # the disk's fault, not the zip's
            raise
        raise _bad_zip(name, error) from error
    except Exception as error:  # a broken zip meets zipfile with almost any exception
        raise _bad_zip(name, error) from error


def _bad_zip(name: str, error: Exception) -> RequestError:
    message = f"{name} is not a zip that can be read ({error})"
    return RequestError(422, "bad_zip", message, file=name, rule="an intact zip")


def _too_many_files(name: str, most: int) -> RequestError:
    return RequestError(
        413,
        "too_many_files",
        f"{name} has too many entries; learn it in parts",
        file=name,
        rule=f"at most {most:,} entries",
    )


def _nested(shown: str) -> RequestError:
    return RequestError(
        422, "nested_archive", f"{shown} is an archive itself", file=shown, rule="images only"
    )
