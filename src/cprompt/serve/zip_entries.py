"""The entries of an uploaded zip: which are photos, and which are tricks."""

from __future__ import annotations

import re
import stat
import unicodedata
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cprompt.data.image_files import IMAGE_SUFFIXES, is_listed
from cprompt.serve.config import Limits
from cprompt.serve.errors import RequestError
from cprompt.serve.names import printable

_SMALL = 1_000_000  # below this many unpacked bytes a high compression ratio is no danger
_DRIVE = re.compile(r"[A-Za-z]:")
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
_ARCHIVES = frozenset({".zip", ".7z", ".rar", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".jar", ".zst"})
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_UTF8_NAME = 0x800


@dataclass(frozen=True)
class PhotoEntry:
    """A photo in a zip; `parts` are its folders, outermost first, and its file name."""

    info: zipfile.ZipInfo
    parts: list[str]

    @property
    def name(self) -> str:
        """Its path in the zip, for messages."""
        return "/".join(self.parts)


def photo_entries(
    entries: Sequence[zipfile.ZipInfo], zip_name: str, limits: Limits
) -> tuple[list[PhotoEntry], list[str]]:
    """The photos among a zip's entries, and the names of files that are not images.

    Every entry is checked, whether it is a photo or not.
    """
    if len(entries) > limits.max_files:
        raise too_many_entries(zip_name, limits)
    photos: list[PhotoEntry] = []
    skipped: list[str] = []
    seen: set[str] = set()
    unpacked = 0
    for info in entries:
        path = _packed_path(info)
        _check_entry(info, path, limits)
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if info.is_dir() or path.endswith("/") or not all(map(is_listed, parts)) or not parts:
            continue
        entry = PhotoEntry(info, parts)
        one_spelling = unicodedata.normalize("NFC", entry.name).casefold()
        if one_spelling in seen:
            raise RequestError(
                422,
                "duplicate_name",
                f"{entry.name} is in {zip_name} twice",
                file=entry.name,
                rule="one entry per name",
            )
        seen.add(one_spelling)
        unpacked += info.file_size
        if unpacked > limits.max_unpacked:
            raise RequestError(
                413,
                "zip_too_large",
                f"{zip_name} unpacks to more than {limits.max_unpacked:,} bytes",
                file=zip_name,
                rule=f"at most {limits.max_unpacked:,} bytes unpacked",
            )
        suffix = Path(parts[-1]).suffix.lower()
        if suffix in _ARCHIVES:
            raise nested_archive(entry.name)
        if suffix not in IMAGE_SUFFIXES:
            skipped.append(entry.name)
        elif len(parts) < 2:
            raise RequestError(
                422,
                "no_class_folder",
                f"{entry.name} is not in a folder of {zip_name}; "
                "put the photos of each class into a folder",
                file=entry.name,
                rule="one folder per class",
            )
        else:
            photos.append(entry)
    if not photos:
        raise RequestError(
            422,
            "no_images",
            f"{zip_name} has no images in class folders",
            file=zip_name,
            rule="one folder per class",
        )
    return photos, skipped


def too_many_entries(zip_name: str, limits: Limits) -> RequestError:
    """The refusal of a zip with more than `max_files` entries."""
    return RequestError(
        413,
        "too_many_files",
        f"{zip_name} has too many entries; send it in parts",
        file=zip_name,
        rule=f"at most {limits.max_files:,} entries",
    )


def nested_archive(name: str) -> RequestError:
    """The refusal of an archive inside the zip."""
    return RequestError(
        422, "nested_archive", f"{name} is an archive itself", file=name, rule="images only"
    )


def _packed_path(info: zipfile.ZipInfo) -> str:
    """The path as it was packed; many packers write UTF-8 without saying so."""
    name = info.orig_filename
    if not info.flag_bits & _UTF8_NAME:
        with suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    return name.replace("\\", "/")


def _check_entry(info: zipfile.ZipInfo, path: str, limits: Limits) -> None:
    shown = printable(path)

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
            "bad_entry",
            "uses an unusual compression method",
            "stored or deflated, as zip does by default",
        )
    if info.file_size > limits.max_body:
        rule = f"at most {limits.max_body:,} bytes per photo"
        raise refuse("file_too_large", "is too large", rule, 413)
    if info.file_size > _SMALL and info.file_size > limits.max_ratio * info.compress_size:
        rule = f"at most {limits.max_ratio} times its packed size"
        raise refuse("zip_bomb", "unpacks to far more than its packed size", rule, 413)
