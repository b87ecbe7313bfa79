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


@dataclass(frozen=True, eq=False)
class Run:
    """A record, where it is, and a short name: that of its folder, or of its file."""

    path: Path
    record: Record

    @property
    def name(self) -> str:
        """What a table calls it; says nothing of the machine's folders."""
        return self.path.parent.name if self.path.name == FILE else self.path.stem

    @property
    def seeds(self) -> tuple[Any, Any, Any]:
        """Of class order, initialisation and data; None where an old record does not say."""
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
        """`finished`, or how far it got."""
        record = self.record
        if record.finished:
            return "finished"
        return f"unfinished, {len(record.rows)} of {record.stream.n_tasks} tasks"


def find_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs that `paths` name or hold, and what a reader must know about those left out.

    A path that does not exist may be a pattern, such as runs/cars10/l2p-*, and names all it
    matches. A folder with a `record.json` is one run. Any other folder is searched: `record.json`
    at any depth, and JSON files directly inside. What is named must be a record; what is found and
    is none is passed over. A record found twice, or copied, counts once.
    """
    runs: list[Run] = []
    notes: list[str] = []
    known: dict[str, Path] = {}
    for path in itertools.chain.from_iterable(map(_matches, paths)):
        named = not path.is_dir() or (path / FILE).exists()
        records = 0
        for file in [path / FILE if path.is_dir() else path] if named else _search(path):
            try:
                record = load_record(file)
            except CheckpointError as error:
                if named:
                    raise
                if _claims_to_be_one(file):
                    notes.append(f"Left out: {error}.")
                continue
            records += 1
            content = json.dumps(record.to_dict(), sort_keys=True)
            if content not in known:
                known[content] = file
                runs.append(Run(file, record))
            elif known[content].resolve() != file.resolve():
                first = Run(known[content], record)
                notes.append(f"{Run(file, record).name} is a copy of {first.name}; it counts once.")
        if not records:
            raise CheckpointError(
                f"{path} holds no record that can be read; give run folders, record files, or a "
                "folder with runs below it" + "".join(f" ({note})" for note in notes)
            )
    return runs, notes


def _matches(path: Path) -> list[Path]:
    """What a pattern matches, in order; any other path as it is."""
    if path.exists() or not any(sign in str(path) for sign in "*?["):
        return [path]
    found = sorted(map(Path, glob.glob(str(path))))
    if not found:
        raise CheckpointError(f"nothing matches {path}; give run folders, record files or folders")
    return found


def _search(folder: Path) -> Iterator[Path]:
    found = {*folder.rglob(FILE), *folder.glob("*.json")}
    yield from sorted(path for path in found if path.is_file())


def _claims_to_be_one(file: Path) -> bool:
    """Whether a file that cannot be read is a damaged record rather than some other JSON."""
    if file.name == FILE:
        return True
    try:
        values = read_json(file)
    except CheckpointError:
        return False
    return isinstance(values, dict) and values.get("format") == FORMAT
