"""A folder that photos arrive in, answered as they come and sorted into one folder per class.

A photo is touched only when its size and time were the same in two looks, so that a file which is
still being written is left alone. It is first copied beside its target under a hidden name, then
renamed, and removed from the inbox last. A process that is killed at any point leaves every photo
in the inbox, in its class folder, or in both with equal content; the next look tidies up the last.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

from filelock import FileLock, Timeout

from cprompt.classifier.classifier import ContinualClassifier
from cprompt.classifier.explanation import Explanation
from cprompt.classifier.readable import explain_readable
from cprompt.data.image_files import list_images, require_folder
from cprompt.errors import ConfigError, DataError
from cprompt.files import append_line, shown_path

JOURNAL = "answers.jsonl"
"""In the sorted folder: one line per photo that was sorted."""

LOCK = ".watch.lock"

_AT_ONCE = 64  # photos answered before they are moved
_LONGEST = 200  # bytes of a folder's name; file systems allow 255
_UNSAFE = re.compile(r'[%/\\:*?"<>|]|^[. ]|[. ]$')

Signature: TypeAlias = tuple[int, int]
"""Size in bytes and time of the last change in nanoseconds: equal in two looks, a file is whole."""


@dataclass(frozen=True)
class Sorted:
    """What happened to one photo; `target` is None, and `error` says why, if it cannot be read."""

    photo: Path
    target: Path | None
    label: str | None = None
    probability: float | None = None
    error: DataError | None = None


class Inbox:
    """Photos in `inbox`, to be moved, or copied, into class folders below `sorted_into`."""

    def __init__(self, inbox: Path, sorted_into: Path, *, copy: bool = False) -> None:
        require_folder(inbox)
        inside, outside = inbox.resolve(), sorted_into.resolve()
        if inside == outside or inside in outside.parents or outside in inside.parents:
            raise ConfigError(
                f"{sorted_into} and {inbox} lie in one another, so photos would arrive twice",
                hint="choose two folders side by side",
            )
        self.inbox = inbox
        self.sorted_into = sorted_into
        self.copy = copy
        self._last: dict[Path, Signature] = {}
        self._done: dict[Path, Signature] = {}
        """Photos that stay in the inbox: copied, or not readable."""
        self._journal = {(row["photo"], row["size"], row["time"]) for row in self._read_journal()}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from sorting into the same folder; a ConfigError if one does."""
        self.sorted_into.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.sorted_into / LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise ConfigError(
                "another process sorts photos into it",
                file=self.sorted_into,
                hint="stop that one, or choose another folder",
            ) from None
        try:
            yield
        finally:
            lock.release()

    def look(self, classifier: ContinualClassifier) -> Iterator[Sorted]:
        """Sort the photos that have not changed since the last look."""
        now = {path: sign for path in list_images(self.inbox) if (sign := _signature(path))}
        ready = [
            path
            for path, sign in now.items()
            if self._last.get(path) == sign
            and self._done.get(path) != sign
            and not (self.copy and self._key(path, sign) in self._journal)
        ]
        self._last = now
        self._done = {path: sign for path, sign in self._done.items() if path in now}
        for first in range(0, len(ready), _AT_ONCE):
            part = ready[first : first + _AT_ONCE]
            yield from self._sort(part, explain_readable(classifier, part, top=1))

    @property
    def waiting(self) -> int:
        """How many photos the last look saw and has not dealt with, because they may still grow."""
        return sum(
            self._done.get(path) != sign
            and path.exists()
            and not (self.copy and self._key(path, sign) in self._journal)
            for path, sign in self._last.items()
        )

    def _sort(
        self, photos: Sequence[Path], answers: Sequence[Explanation | DataError]
    ) -> Iterator[Sorted]:
        for photo, answer in zip(photos, answers, strict=True):
            sign = self._last[photo]
            if _signature(photo) != sign:
                continue  # it changed, or went away, while it was answered
            if isinstance(answer, DataError):
                self._done[photo] = sign
                yield Sorted(photo, None, error=answer)
                continue
            target = self._place(photo, self.sorted_into / folder_name(answer.label))
            self._write(photo, sign, target, answer)
            if self.copy:
                self._done[photo] = sign
            else:
                photo.unlink(missing_ok=True)
            yield Sorted(photo, target, answer.label, answer.probability)

    def _place(self, photo: Path, folder: Path) -> Path:
        """Copy the photo into the folder, completely or not at all; never over another one."""
        try:
            return self._placed(photo, folder)
        except OSError as error:
            raise DataError(
                f"cannot be copied into {folder} ({error.strerror or error})",
                file=photo,
                hint="free some disk space there, or check its permissions",
            ) from error

    def _placed(self, photo: Path, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        number, target = 1, folder / photo.name
        while target.exists():
            if filecmp.cmp(photo, target, shallow=False):
                return target  # a process was killed after copying it
            number += 1
            target = folder / f"{photo.stem} ({number}){photo.suffix}"
        part = folder / f".{target.name}.part"
        try:
            with photo.open("rb") as source, part.open("wb") as copied:
                shutil.copyfileobj(source, copied)
                copied.flush()
                os.fsync(copied.fileno())
            shutil.copystat(photo, part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        return target

    # --- the journal ----------------------------------------------------------------------------

    def _key(self, photo: Path, sign: Signature) -> tuple[str, int, int]:
        return (shown_path(photo.relative_to(self.inbox)), *sign)

    def _write(self, photo: Path, sign: Signature, target: Path, answer: Explanation) -> None:
        name, size, time = key = self._key(photo, sign)
        row = {
            "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "photo": name,
            "size": size,
            "time": time,
            "label": answer.label,
            "probability": answer.probability,
            "target": shown_path(target.relative_to(self.sorted_into)),
        }
        append_line(self.sorted_into / JOURNAL, json.dumps(row, ensure_ascii=False))
        self._journal.add(key)

    def _read_journal(self) -> Iterator[dict[str, Any]]:
        path = self.sorted_into / JOURNAL
        for line in path.read_bytes().splitlines() if path.is_file() else []:
            with suppress(ValueError):  # the last line of a process that was killed
                row = json.loads(line)
                if isinstance(row, dict) and {"photo", "size", "time"} <= row.keys():
                    yield row


def folder_name(name: str) -> str:
    """A class's name as the name of one folder; characters that paths give a meaning are `%XX`.

    >>> folder_name("five-point star"), folder_name("../a")
    ('five-point star', '%2E.%2Fa')
    """
    safe = _UNSAFE.sub(lambda sign: f"%{ord(sign[0]):02X}", name)
    encoded = safe.encode()
    if len(encoded) <= _LONGEST:
        return safe
    digest = hashlib.sha256(encoded).hexdigest()[:8]
    return f"{encoded[:_LONGEST].decode(errors='ignore')}-{digest}"


def _signature(path: Path) -> Signature | None:
    """None if the file has gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
