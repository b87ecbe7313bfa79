"""One job in the background: its state, its progress, and how a learner reports to it."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from cprompt.serve.errors import in_senders_words
from cprompt.serve.uploads import Upload
from cprompt.training.observers import Observer

Kind = Literal["learn", "evaluate", "undo", "rename", "forget", "merge"]
State = Literal["queued", "running", "done", "failed", "cancelled"]


class StoppedError(Exception):
    """Raised inside a job that was asked to stop."""


@dataclass(frozen=True)
class Progress:
    """How far the present phase of a job is; `total` is 0 if that is not known."""

    phase: str
    done: int = 0
    total: int = 0


@dataclass
class Job:
    """Something to do in the background. Fields are replaced whole, so any thread may read them."""

    kind: Kind
    upload: Upload
    folder: Path | None
    arguments: dict[str, str] = field(default_factory=dict)
    expects: str | None = None
    """The version of the model that it is meant for; None: whatever is there."""
    role: str = "anyone"
    """Whose token asked for it."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    photos: dict[str, int] = field(init=False)
    created: str = field(default_factory=lambda: now())
    state: State = "queued"
    started: str | None = None
    finished: str | None = None
    progress: Progress = Progress("waiting")
    error: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
    """What is odd about its photos, but no reason to stop."""
    promise: dict[str, Any] | None = None
    """Its result and the version that it replaces, noted before the model is saved."""
    cancelled: bool = False
    """Whether a client asked it to stop."""
    ending: bool = False
    """Whether its end is being written down; it can no longer be cancelled."""
    starts: int = 0
    """How often it was begun: more than once if its service was killed."""
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.photos = self.upload.per_class()

    def show(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Report progress; raises StoppedError if the job was asked to stop."""
        if self.stop.is_set():
            raise StoppedError
        self.progress = Progress(phase, done, total)


class JobObserver(Observer):
    """Shows a learner's progress as a job's, and stops the learner with the job."""

    def __init__(self, job: Job, then: str) -> None:
        """`then` is the phase after all photos are read."""
        self._job = job
        self._then = then
        self._steps = 0
        self._done = 0
        self._counted: tuple[int, int] | None = None

    def decoded(self, done: int, total: int) -> None:
        """The first phase: photos are read; once some were counted, that goes on meanwhile."""
        if self._counted is not None:
            self._job.show(self._then, *self._counted)
        elif done < total:
            self._job.show("reading photos", done, total)
        else:
            self._job.show(self._then)

    def counted(self, done: int, total: int) -> None:
        """The second phase of a method that is not trained."""
        self._counted = done, total
        self._job.show(self._then, done, total)

    def noticed(self, message: str) -> None:
        """Keep it for whoever asks about the job."""
        told = in_senders_words(message, self._job.upload.sent_names())
        self._job.warnings = [*self._job.warnings, told]

    def task_begins(self, task: int, n_classes: int, steps: int, done: int) -> None:
        """The second phase: training."""
        self._steps, self._done = steps, done
        self._job.show("learning", done, steps)

    def stepped(self, epoch: int, names: tuple[str, ...], losses: Tensor) -> None:
        """Count a step. The losses are not read: that would wait for the device."""
        self._done += 1
        if self._done < self._steps:
            self._job.show("learning", self._done, self._steps)
        else:
            self._job.show("finishing")


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
