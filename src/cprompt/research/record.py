"""The record of a run: one JSON file with everything a number depends on."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import cprompt
from cprompt.errors import CheckpointError, CPromptError
from cprompt.files import read_json, write_json
from cprompt.processor import processor
from cprompt.research import metrics
from cprompt.research.evaluation import TaskCounts, matrix_of, selection_accuracy
from cprompt.research.record_fields import check_fields
from cprompt.research.stream import TaskStream
from cprompt.research.training_health import training_warnings
from cprompt.training.movement import Movement
from cprompt.vit.light_timm import timm

FORMAT = "cprompt-record"
VERSION = 1
FILE = "record.json"

_KEYS = {"images": "pictures"}
"""Fields with another key in the file, kept so that all records ever written can be read."""
_BUILT = ("stream", "rows", "classes", "movement")
"""Fields that are converted when stored."""


@dataclass
class Record:
    """A run's settings, environment and results; `rows` has one entry per task done.

    config: `RunConfig.public()`. classes: names by dataset label. seconds: wall-clock time per
    part of the run; `waiting` is the part of training spent waiting for images. test_passes:
    passes of test images through the backbone over the whole stream, without and with prompts.
    losses: per task, the mean loss terms of each epoch. movement: per task, how far each group of
    parameters went; empty in records from before it was measured. memory: peaks in bytes, of the
    process and of a CUDA device, which may also hold decoded images. failure: why the run stopped,
    if training diverged.

    >>> stream = TaskStream(order=(1, 0), sizes=(1, 1))
    >>> record = Record({}, stream, "drawn", ["disc", "star"], {}, {"train": 8, "test": 4})
    >>> record.finished, record.summary()  # no task was learnt yet
    (False, {})
    """

    config: dict[str, Any]
    stream: TaskStream
    dataset: str
    classes: Sequence[str]
    backbone: dict[str, str]
    images: dict[str, int]
    parameters: dict[str, int] = field(default_factory=dict)
    rows: list[TaskCounts] = field(default_factory=list)
    losses: list[list[dict[str, float]]] = field(default_factory=list)
    movement: list[dict[str, Movement]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    test_passes: dict[str, int] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None

    @property
    def n_planned(self) -> int:
        """Tasks that the run learns: all, or the first ones if its settings say so."""
        return self.config.get("stream", {}).get("first_tasks") or self.stream.n_tasks

    @property
    def partial(self) -> bool:
        """Whether the run learns only the first tasks of its stream."""
        return self.n_planned < self.stream.n_tasks

    @property
    def finished(self) -> bool:
        """Whether every task that the run learns was learnt and evaluated."""
        return len(self.rows) == self.n_planned

    def matrix(self, mode: str = "selected") -> metrics.AccuracyMatrix:
        """The counts behind a[i,j]."""
        return matrix_of(self.rows, self.stream, mode)

    def summary(self) -> dict[str, float]:
        """All metrics of the tasks done so far, by name; undefined ones are left out.

        Besides `metrics.summary`: old, new and top-k accuracy and `selection_accuracy` (right
        prompt selected) after the last task; and, if these modes were evaluated, last and average
        accuracy with the right prompt given, and with the first task's prompt (tasks 2 to T, as in
        the paper).
        """
        if not self.rows:
            return {}
        last = self.rows[-1]
        matrix = self.matrix()
        found = metrics.summary(matrix)
        found["old_accuracy"] = float(metrics.old_accuracy(matrix)[-1])
        found["new_accuracy"] = float(metrics.new_accuracy(matrix)[-1])
        if last.top_k is not None:
            found["top_k_accuracy"] = 100 * sum(last.top_k) / sum(last.count)
        if last.picks is not None:
            found["selection_accuracy"] = selection_accuracy(last)
        for mode, skip in (("given", 0), ("first", 1)):
            if mode in last.correct and len(self.rows) > skip:
                matrix = matrix_of(self.rows, self.stream, mode, skip)
                found[f"last_accuracy_{mode}"] = metrics.last_accuracy(matrix)
                found[f"average_accuracy_{mode}"] = metrics.average_accuracy(matrix)
        return {name: value for name, value in found.items() if math.isfinite(value)}

    @property
    def warnings(self) -> list[str]:
        """What looks wrong in the training, for a person; also of an older record's losses."""
        found = list(training_warnings(self.movement, self.losses).values())
        return [*found, self.failure] if self.failure else found

    def to_dict(self) -> dict[str, Any]:
        """Plain values; summary and warnings are for people and are not read back."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "finished": self.finished,
            "partial": self.partial,
            "summary": self.summary(),
            "warnings": self.warnings,
            **{_KEYS.get(k, k): v for k, v in vars(self).items() if k not in _BUILT},
            "classes": list(self.classes),
            "stream": self.stream.to_dict(),
            "rows": [row.to_dict() for row in self.rows],
            "movement": [{group: dict(vars(m)) for group, m in t.items()} for t in self.movement],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Record:
        """The inverse of `to_dict`."""
        fields = {_KEYS.get(name, name): name for name in cls.__dataclass_fields__}
        known = {fields[k]: v for k, v in values.items() if k in fields}
        known["classes"] = tuple(values["classes"])
        known["stream"] = TaskStream.from_dict(values["stream"])
        known["rows"] = [TaskCounts.from_dict(row) for row in values["rows"]]
        known["movement"] = [
            {group: Movement(**m) for group, m in task.items()}
            for task in values.get("movement", [])
        ]
        config = values["config"]
        if "method" in config:
            # Records of CPrompt once said whether its heads were aligned; those here are not.
            method = {k: v for k, v in config["method"].items() if (k, v) != ("align", False)}
            known["config"] = {**config, "method": method}
        return cls(**known)

    def take_up(self, saved: Record) -> None:
        """Continue from the record of an interrupted part of the same run."""
        for name in ("rows", "losses", "movement", "parameters", "test_passes", "memory"):
            setattr(self, name, getattr(saved, name))
        self.seconds.update(saved.seconds)

    def save(self, folder: Path) -> None:
        """Write `record.json` atomically."""
        write_json(folder / FILE, self.to_dict())


class Clock:
    """Adds up the seconds that parts of a run take, in `seconds`."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self.start()

    def start(self) -> None:
        """Start counting now."""
        self._since = time.perf_counter()

    def charge(self, part: str) -> None:
        """Add the time since the last call to `part`."""
        now = time.perf_counter()
        self.add(part, now - self._since)
        self._since = now

    def add(self, part: str, seconds: float) -> None:
        """Add some seconds to `part`."""
        if seconds:
            self._seconds[part] = self._seconds.get(part, 0.0) + seconds


def load_record(path: Path) -> Record:
    """Read a record from a run folder or a JSON file.

    >>> from tempfile import TemporaryDirectory
    >>> stream = TaskStream(order=(1, 0), sizes=(1, 1))
    >>> record = Record({}, stream, "drawn", ["disc", "star"], {}, {"train": 8, "test": 4})
    >>> with TemporaryDirectory() as folder:
    ...     record.save(Path(folder))
    ...     load_record(Path(folder)).stream.order
    (1, 0)
    """
    path = path / FILE if path.is_dir() else path
    values = read_json(path)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise CheckpointError("is not a record of cprompt", file=path)
    if values.get("version") != VERSION:
        raise CheckpointError(
            f"has record format version {values.get('version')}; this cprompt reads version "
            f"{VERSION}",
            file=path,
        )
    try:
        check_fields(values)
        record = Record.from_dict(values)
        record.summary()  # raises if a task has no test image
    except CPromptError as error:
        raise CheckpointError(f"is a damaged record: {error.message}", file=path) from error
    return record


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and hardware of this process; no host name, no path."""
    hardware = {"device": device.type, "cpu": processor().name, "cpu_count": os.cpu_count()}
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
    return {
        "cprompt": cprompt.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "system": platform.system(),
        **hardware,
    }


def peak_memory(device: torch.device) -> dict[str, int]:
    """Peak memory in bytes: of this process, and of a CUDA device since its last reset."""
    peaks = {}
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        pass
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peaks["process"] = peak * (1 if platform.system() == "Darwin" else 1024)
    if device.type == "cuda":
        peaks["device"] = torch.cuda.max_memory_allocated(device)
    return peaks
