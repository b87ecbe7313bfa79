"""A folder of answers in parts, each written at once; what is missing can be told.

`answers.json` says what the parts belong to, so that a second start cannot mix two sets of answers.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cprompt.cli.answer_files import Row, as_parquet, errors_in_parquet
from cprompt.errors import ConfigError
from cprompt.files import check_writable, read_json, remove_parts, write_bytes, write_json

FILE = "answers.json"


def as_jsonl(rows: Sequence[Row]) -> bytes:
    """One JSON object per line, in UTF-8."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


RENDER: Mapping[str, Callable[[Sequence[Row]], bytes]] = {
    "parquet": as_parquet,
    "jsonl": as_jsonl,
}


def errors_in_jsonl(path: Path) -> int:
    """How many rows of a file of `as_jsonl` have an error."""
    with path.open(encoding="utf-8") as lines:
        return sum(json.loads(line)["error"] is not None for line in lines)


ERRORS: Mapping[str, Callable[[Path], int]] = {
    "parquet": errors_in_parquet,
    "jsonl": errors_in_jsonl,
}


ENDS: Mapping[str, bytes] = {"parquet": b"PAR1", "jsonl": b"\n"}
"""The last bytes of a part that is whole."""


class AnswerParts:
    """The parts 0 to `count` - 1 of answers in a folder."""

    def __init__(self, folder: Path, count: int, ending: str, about: Mapping[str, Any]) -> None:
        """`about` is plain JSON; with another one than before, the folder is refused."""
        self.folder, self.count, self.ending = folder, count, ending
        path = folder / FILE
        check_writable(path)
        whole = {"parts": count, "format": ending, **about}
        if path.exists():
            there = read_json(path)
            differ = [name for name in whole if there.get(name) != whole[name]]
            if differ:
                raise ConfigError(
                    f"holds answers to something else: other {', '.join(differ)}",
                    file=folder,
                    hint="choose another --out, or delete the folder",
                )
        else:
            write_json(path, whole)

    def path(self, number: int) -> Path:
        """The file of a part."""
        return self.folder / f"part-{number:06d}-of-{self.count:06d}.{self.ending}"

    def missing(self) -> list[int]:
        """The parts that were not written yet, or are cut short, as by a copy that was stopped."""
        return [number for number in range(self.count) if not self._is_whole(number)]

    def unread(self, number: int) -> int:
        """How many photos of a part that is there could not be read."""
        return ERRORS[self.ending](self.path(number))

    def _is_whole(self, number: int) -> bool:
        end = ENDS[self.ending]
        try:
            with self.path(number).open("rb") as file:
                file.seek(-len(end), os.SEEK_END)
                return file.read() == end
        except OSError:  # it is not there, or shorter than that
            return False

    def write(self, number: int, rows: Sequence[Row]) -> None:
        """Write a part beside its place and rename it; only one process writes each.

        What others left of it that were killed meanwhile is removed.
        """
        path = self.path(number)
        write_bytes(path, RENDER[self.ending](rows))
        remove_parts(self.folder, path.name)


def digest(photos: Sequence[Any]) -> str:
    """What a list of photos has in common with itself only: their names in order."""
    found = hashlib.sha256()
    for photo in photos:
        found.update(str(photo).encode("utf-8", "surrogateescape") + b"\0")
    return found.hexdigest()[:16]
