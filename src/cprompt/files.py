"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from cprompt.errors import CheckpointError, ConfigError

T = TypeVar("T")

PART_ENDING = r"(\.[0-9a-f]{16})?\.part"
"""How the name of a temporary file ends, as a regular expression; earlier versions had `.part`."""

_LONGEST = 200  # bytes of a temporary name that say what it is for; file systems allow 255 in all


def cache_home() -> Path:
    """The folder for what can be made again: cprompt in $XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cprompt"


def part_beside(path: Path) -> Path:
    """A new name beside `path` for what will be renamed to it; no two calls give the same one."""
    name = os.fsencode(path.name)[:_LONGEST].decode(errors="ignore")
    return path.with_name(f"{name}.{secrets.token_hex(8)}.part")


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file beside `path`, sync it to disk, then rename it to `path`.

    Several threads or processes may write the same path: the last one's content stays, whole.
    """
    part = part_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("xb") as file:  # not mkstemp, whose files only their owner may read
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    except OSError as error:
        raise CheckpointError(
            f"cannot be written ({error.strerror})",
            file=path,
            hint="free some disk space, or choose another folder",
        ) from error


def append_line(path: Path, line: str) -> None:
    """Add a line to a file; an OSError if it cannot be written.

    Whoever wrote before may have been killed in the middle of a line, or met a full disk. What is
    left of that line is ended first, so that only it is unreadable.
    """
    with path.open("a+b") as file:
        if file.tell() and not _ends_a_line(file):
            line = "\n" + line
        file.write((line + "\n").encode())


def check_writable(path: Path) -> None:
    """Raise a ConfigError if `path` cannot be written; call it before long work.

    Nothing is created. `write_bytes` makes missing folders, so it is enough that the nearest
    existing folder is writable.
    """
    if os.path.isdir(path):
        raise ConfigError("is a folder, not a file", file=path, hint="name a file in it")
    folder = next(parent for parent in path.absolute().parents if os.path.exists(parent))
    if not os.path.isdir(folder):
        raise ConfigError(f"cannot be written, {folder} is not a folder", file=path)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"cannot be written, {folder} is read-only",
            file=path,
            hint="change its permissions, or choose another folder",
        )


def shown_path(path: str | Path) -> str:
    """A path, or a text with paths in it, as valid Unicode.

    File systems allow names that are not UTF-8. Python keeps the bytes that it cannot decode as
    lone surrogates, which neither JSON nor a terminal takes. Each becomes `\\xNN`; everything else
    stays as it is.

    >>> shown_path(os.fsdecode(b"caf\\xe9.jpg"))
    'caf\\\\xe9.jpg'
    """
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON; NaN and infinity raise a ValueError."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(path, (text + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON; the error for a missing or invalid file names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError("does not exist", file=path) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"is not readable JSON: {error}", file=path) from error


def with_prefix(prefix: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """Put `prefix/` before each name.

    >>> with_prefix("head", {"weight": 1})
    {'head/weight': 1}
    """
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under_prefix(prefix: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """Those tensors whose name starts with `prefix/`, without it.

    >>> under_prefix("head", {"head/weight": 1, "keys": 2})
    {'weight': 1}
    """
    start = f"{prefix}/"
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def _ends_a_line(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
