"""A folder that photos arrive in, answered as they come and sorted into one folder per class.

A photo is touched only when its size and time were the same in two looks, so that a file which is
still being written is left alone. It is first copied beside its target under a hidden name, then
renamed, and removed from the inbox last. If its size or time changed meanwhile, the copy is removed
and the photo waits for the next look. A process that is killed at any point leaves every photo in
the inbox, in its class folder, or in both with equal content; the next look tidies up the last. One
that the journal names as sorted is then only removed: the model may have learnt meanwhile and would
put it into a second folder.

A photo that cannot be moved stops no other one: its error is part of the answer.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

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

RETRY = 60.0
"""Seconds until a photo that could not be copied or removed is tried again."""

_PART = ".watch.part"  # in a class folder; the lock keeps others from using the same
_AT_ONCE = 64  # photos answered before they are moved
_LONGEST = 200  # bytes of a folder's name
_LONGEST_FILE = 255  # bytes of a file's name that file systems allow
_UNSAFE = re.compile(r'[%/\\:*?"<>|]|^[. ]|[. ]$')

Signature: TypeAlias = tuple[int, int]
"""Size in bytes and time of the last change in nanoseconds: equal in two looks, a file is whole."""


@dataclass(frozen=True)
class Sorted:
    """What happened to one photo. With an `error`, which says why, it stays in the inbox.

    `label` is None if it cannot be read, and `target` if it was not copied. If there are both, the
    photo was sorted and cannot be removed from the inbox.
    """

    photo: Path
    target: Path | None
    label: str | None = None
    probability: float | None = None
    error: DataError | None = None


class _Noted(NamedTuple):
    """What the journal says of a photo that was sorted."""

    target: str
    label: str
    probability: float


class _Failure(NamedTuple):
    """A photo that could not be copied or removed."""

    sign: Signature
    message: str
    again: float
    """When to try again, by `time.monotonic`."""


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
        """Photos that stay in the inbox: copied, not readable, or not to be moved."""
        self._failed: dict[Path, _Failure] = {}
        self._journal = {
            (row["photo"], row["size"], row["time"]): _Noted(
                *(row[name] for name in _Noted._fields)
            )
            for row in self._read_journal()
        }

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from sorting into the same folder; a ConfigError if one does."""
        lock = FileLock(self.sorted_into / LOCK, timeout=0)
        try:
            self.sorted_into.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise ConfigError(
                "another process sorts photos into it",
                file=self.sorted_into,
                hint="stop that one, or choose another folder",
            ) from None
        except OSError as error:
            raise ConfigError(
                f"cannot be written ({error.strerror or error})",
                file=self.sorted_into,
                hint="choose another folder, or check the disk and permissions",
            ) from error
        try:
            yield
        finally:
            lock.release()

    def look(self, classifier: ContinualClassifier) -> Iterator[Sorted]:
        """Sort the photos that have not changed since the last look.

        A photo that cannot be copied or removed is tried again after `RETRY` seconds, and told
        again only if it changed or the reason is another one.
        """
        started = time.monotonic()
        for path, failure in self._failed.items():
            if failure.again <= started:
                self._done.pop(path, None)
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
        self._failed = {path: each for path, each in self._failed.items() if path in now}
        new = []
        for path in ready:
            found = self._finish(path, now[path])
            if found is None:
                new.append(path)
            else:
                yield from self._ended(found, now[path])
        for first in range(0, len(new), _AT_ONCE):
            part = new[first : first + _AT_ONCE]
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
                found: Sorted | None = Sorted(photo, None, error=answer)
            else:
                found = self._move(photo, sign, answer)
            if found is None:
                continue  # it changed, or went away, while it was copied
            yield from self._ended(found, sign)

    def _finish(self, photo: Path, sign: Signature) -> Sorted | None:
        """Remove a photo that was sorted before and not removed; None if it must be answered."""
        noted = self._journal.get(self._key(photo, sign))
        if noted is None:
            return None
        target, error = self.sorted_into / noted.target, None
        try:
            if not _same_bytes(photo, target):
                return None
        except OSError:  # say, somebody has moved it on
            return None
        try:
            _remove(photo, sign)
        except DataError as found:
            error = found
        return Sorted(photo, target, noted.label, noted.probability, error)

    def _ended(self, found: Sorted, sign: Signature) -> Iterator[Sorted]:
        """Remember what happened to a photo, and yield it if it is news."""
        if self.copy or found.error is not None:
            self._done[found.photo] = sign
        if self._is_news(found, sign):
            yield found

    def _move(self, photo: Path, sign: Signature, answer: Explanation) -> Sorted | None:
        """Copy the photo, write the journal, remove the photo; None if it changed before that."""
        folder = self.sorted_into / folder_name(answer.label)
        target = None
        try:
            placed = self._place(photo, sign, folder)
            if placed is None:
                return None
            self._write(photo, sign, placed, answer)
            target = placed
            if not self.copy:
                _remove(photo, sign)
        except DataError as error:
            if _signature(photo) != sign:
                return None  # no error but its cause
            return Sorted(photo, target, answer.label, answer.probability, error)
        return Sorted(photo, target, answer.label, answer.probability)

    def _is_news(self, found: Sorted, sign: Signature) -> bool:
        """Whether to tell it; remembers what could not be copied or removed, to try it again."""
        before = self._failed.pop(found.photo, None)
        if found.error is None or found.label is None:
            return True
        failure = _Failure(sign, found.error.message, time.monotonic() + RETRY)
        self._failed[found.photo] = failure
        return before is None or before[:2] != failure[:2]

    def _place(self, photo: Path, sign: Signature, folder: Path) -> Path | None:
        """Copy the photo into the folder, completely or not at all; never over another one.

        None if the photo changed meanwhile.
        """
        with _naming(
            photo,
            f"cannot be copied into {folder}",
            hint="free some disk space there, or check its permissions",
        ):
            folder.mkdir(parents=True, exist_ok=True)
            number, target = 1, folder / photo.name
            while target.exists():
                if _same_bytes(photo, target):  # a process was killed after copying
                    return target if _signature(photo) == sign else None
                number += 1
                target = folder / _numbered(photo.name, number)
            part = folder / _PART
            try:
                with photo.open("rb") as source, part.open("wb") as copied:
                    shutil.copyfileobj(source, copied)
                    copied.flush()
                    os.fsync(copied.fileno())
                shutil.copystat(photo, part)
                if _signature(photo) != sign:
                    return None
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
            return target

    # --- the journal ----------------------------------------------------------------------------

    def _key(self, photo: Path, sign: Signature) -> tuple[str, int, int]:
        return (shown_path(photo.relative_to(self.inbox)), *sign)

    def _write(self, photo: Path, sign: Signature, target: Path, answer: Explanation) -> None:
        name, size, time = key = self._key(photo, sign)
        place = shown_path(target.relative_to(self.sorted_into))
        row = {
            "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "photo": name,
            "size": size,
            "time": time,
            "label": answer.label,
            "probability": answer.probability,
            "target": place,
        }
        journal = self.sorted_into / JOURNAL
        with _naming(photo, f"cannot be noted in {journal}", hint="check the disk and permissions"):
            append_line(journal, json.dumps(row, ensure_ascii=False))
        self._journal[key] = _Noted(place, answer.label, answer.probability)

    def _read_journal(self) -> Iterator[dict[str, Any]]:
        path = self.sorted_into / JOURNAL
        for line in path.read_bytes().splitlines() if path.is_file() else []:
            with suppress(ValueError):  # the last line of a process that was killed
                row = json.loads(line)
                if (
                    isinstance(row, dict)
                    and {"photo", "size", "time", *_Noted._fields} <= row.keys()
                ):
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


def _same_bytes(one: Path, other: Path) -> bool:
    """Whether two files hold the same; read each time, while filecmp trusts sizes and times."""
    filecmp.clear_cache()
    return filecmp.cmp(one, other, shallow=False)


def _numbered(name: str, number: int) -> str:
    """The file name with a number before its ending, shortened if it would be too long.

    >>> _numbered("cat.jpg", 2), len(_numbered("a" * 251 + ".jpg", 2))
    ('cat (2).jpg', 255)
    """
    stem, suffix = os.path.splitext(name)
    end = f" ({number}){suffix}"
    room = _LONGEST_FILE - len(os.fsencode(end))
    encoded = os.fsencode(stem)
    return (stem if len(encoded) <= room else encoded[:room].decode(errors="ignore")) + end


def _remove(photo: Path, sign: Signature) -> None:
    """Remove a photo that was sorted, unless it changed after that; then it is sorted again."""
    with _naming(
        photo,
        "cannot be removed",
        hint="check the inbox's permissions; `cprompt watch --copy` leaves photos there",
    ):
        if _signature(photo) == sign:
            photo.unlink(missing_ok=True)


@contextmanager
def _naming(photo: Path, what: str, *, hint: str) -> Iterator[None]:
    """Turn an OSError into a DataError about the photo."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{what} ({error.strerror or error})", file=photo, hint=hint) from error


def _signature(path: Path) -> Signature | None:
    """None if the file has gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
