"""Finding records: run folders, record files, and folders with any number of them below."""

from __future__ import annotations

import glob
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cprompt.errors import CheckpointError
from cprompt.files import read_json
from cprompt.research.record import FILE, FORMAT, Record, load_record

WHAT_TO_GIVE = "give run folders, record files, or a folder with runs below it"


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A run as its record tells it: the record and the file it was read from."""

    path: Path
    record: Record

    @property
    def name(self) -> str:
        """Name of the run folder, or of the record file; it has no path of the machine in it."""
        return self.path.parent.name if self.path.name == FILE else self.path.stem

    @property
    def seeds(self) -> tuple[Any, Any, Any]:
        """Seeds of class order, initialisation and data; None where an old record has none."""
        seeds = self.record.config.get("seeds", {})
        return seeds.get("order"), seeds.get("init"), seeds.get("data")

    @property
    def seeds_text(self) -> str:
        """`7` where all three are 7, else order/init/data."""
        texts = [
            "list" if isinstance(s, list) else "?" if s is None else str(s) for s in self.seeds
        ]
        return texts[0] if len(set(texts)) == 1 else "/".join(texts)

    @property
    def state(self) -> str:
        """`finished`, or how many tasks are done."""
        record = self.record
        if not record.finished:
            return f"unfinished, {len(record.rows)} of {record.n_planned} tasks"
        if record.partial:
            return f"finished, the first {record.n_planned} of {record.stream.n_tasks} tasks"
        return "finished"


def find_runs(paths: Sequence[Path]) -> tuple[list[RecordedRun], list[str]]:
    """The runs that `paths` name or hold, and notes for the reader about those left out.

    A path that does not exist may be a pattern, such as runs/cars10/l2p-*, and stands for all its
    matches. A folder with a `record.json` is one run. Any other folder is searched: `record.json`
    at any depth, and JSON files directly inside. A file that is named must be a record; other
    files that a search finds are skipped. A record that is found twice, or copied, counts once.
    """
    runs: list[RecordedRun] = []
    notes: list[str] = []
    known: dict[str, RecordedRun] = {}
    for path in itertools.chain.from_iterable(map(_matches, paths)):
        named = not path.is_dir() or (path / FILE).exists()
        records = 0
        for file in [path / FILE if path.is_dir() else path] if named else _search(path):
            try:
                run = RecordedRun(file, load_record(file))
            except CheckpointError as error:
                if named:
                    raise
                if _claims_to_be_record(file):
                    notes.append(f"Left out: {error}.")
                continue
            records += 1
            first = known.setdefault(json.dumps(run.record.to_dict(), sort_keys=True), run)
            if first is run:
                runs.append(run)
            elif first.path.resolve() != file.resolve():
                notes.append(f"{run.name} is a copy of {first.name}; it counts once.")
        if not records:
            damaged = "".join(f" ({note})" for note in notes)
            raise CheckpointError(
                f"holds no record that can be read{damaged}", file=path, hint=WHAT_TO_GIVE
            )
    return runs, notes


def _matches(path: Path) -> list[Path]:
    """What a pattern matches, in order; any other path as it is."""
    if path.exists() or not any(sign in str(path) for sign in "*?["):
        return [path]
    found = sorted(map(Path, glob.glob(str(path))))
    if not found:
        raise CheckpointError("no file or folder matches", file=path, hint=WHAT_TO_GIVE)
    return found


def _search(folder: Path) -> Iterator[Path]:
    found = {*folder.rglob(FILE), *folder.glob("*.json")}
    yield from sorted(path for path in found if path.is_file())


def _claims_to_be_record(file: Path) -> bool:
    """Whether a file that cannot be read is a damaged record rather than some other JSON."""
    if file.name == FILE:
        return True
    try:
        values = read_json(file)
    except CheckpointError:
        return False
    return isinstance(values, dict) and values.get("format") == FORMAT
