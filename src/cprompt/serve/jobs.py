"""Learning and evaluation in the background: one job at a time, nothing left behind."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from torch import Tensor

from cprompt.errors import CPromptError
from cprompt.serve.errors import RequestError, busy
from cprompt.serve.uploads import Upload, client_text
from cprompt.training.observers import Observer

Kind = Literal["learn", "evaluate", "undo"]
State = Literal["queued", "running", "done", "failed", "cancelled"]

KEPT = 100
"""Finished jobs that are remembered."""

_PREFIX = "cprompt-serve-"
_LOCK = ".lock"
_NICENESS = 10
_log = logging.getLogger(__name__)


class StoppedError(Exception):
    """Raised inside a job that was asked to stop."""


@dataclass(frozen=True)
class Progress:
    """How far the present part of a job is; `total` 0 where that is not known."""

    phase: str
    done: int = 0
    total: int = 0


@dataclass
class Job:
    """One thing to be done. Fields are replaced whole, so any thread may read them."""

    kind: Kind
    upload: Upload
    folder: Path | None
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    photos: dict[str, int] = field(init=False)
    created: str = field(default_factory=lambda: now())
    state: State = "queued"
    started: str | None = None
    finished: str | None = None
    progress: Progress = Progress("waiting")
    error: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.photos = self.upload.per_class()

    def show(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Say how far it is; raises StoppedError if the job is to end here."""
        if self.stop.is_set():
            raise StoppedError
        self.progress = Progress(phase, done, total)

    def explain(self, error: CPromptError) -> str:
        """The error's message with the sender's file names in place of ours."""
        text = client_text(error)
        for photo in self.upload.photos:
            text = text.replace(str(photo.path), photo.name)
        return text


class JobObserver(Observer):
    """Shows a learner's progress as a job's, and stops the learner with the job."""

    def __init__(self, job: Job, then: str) -> None:
        """`then` is the phase after all photos are read."""
        self._job = job
        self._then = then
        self._steps = 0
        self._done = 0

    def decoded(self, done: int, total: int) -> None:
        """Photos are read first."""
        if done < total:
            self._job.show("reading photos", done, total)
        else:
            self._job.show(self._then)

    def task_begins(self, task: int, n_classes: int, steps: int, done: int) -> None:
        """Then trained on."""
        self._steps, self._done = steps, done
        self._job.show("learning", done, steps)

    def stepped(self, epoch: int, names: tuple[str, ...], losses: Tensor) -> None:
        """The losses are not read: that would wait for the device."""
        self._done += 1
        if self._done < self._steps:
            self._job.show("learning", self._done, self._steps)
        else:
            self._job.show("finishing")


class Jobs:
    """A bounded queue of jobs that one thread works off."""

    def __init__(self, most: int, on_end: Callable[[Job], None] = lambda job: None) -> None:
        """`most` jobs wait or run at once; `on_end` is told of every job that ended."""
        self._most = most
        self._on_end = on_end
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._taken = 0
        self._running: Job | None = None
        self._workspace: Workspace | None = None
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="cprompt-job", initializer=_yield_to_predictions
        )

    def start(self) -> None:
        """Begin to take uploads."""
        self._workspace = Workspace()

    @contextmanager
    def slot(self) -> Iterator[Slot]:
        """A place in the queue, taken before an upload is read; 503 if there is none.

        Left without a job in it, it is free again and its folder is removed.
        """
        assert self._workspace is not None, "jobs were not started"
        with self._lock:
            if self._taken >= self._most:
                raise busy(f"{self._most} jobs are waiting or under way; try again later", 10)
            self._taken += 1
        slot = Slot(self._workspace)
        try:
            yield slot
        finally:
            if not slot.filled:
                self._free(slot.folder)

    def add(self, slot: Slot, kind: Kind, upload: Upload, work: Callable[[Job], Any]) -> Job:
        """Queue `work`, which may take its time and returns a result that is plain JSON."""
        job = Job(kind, upload, slot.folder)
        with self._lock:
            self._jobs[job.id] = job
            finished = [j.id for j in self._jobs.values() if j.finished]
            for old in finished[: max(len(finished) - KEPT, 0)]:
                del self._jobs[old]
        slot.filled = True
        self._thread.submit(self._run, job, work)
        return job

    def get(self, id: str) -> Job:
        """The job of that id; 404 if there is none."""
        with self._lock:
            job = self._jobs.get(id)
        if job is None:
            raise RequestError(404, "no_such_job", f"there is no job {id!r}, or it ended long ago")
        return job

    def all(self) -> list[Job]:
        """The jobs that are remembered, oldest first."""
        with self._lock:
            return list(self._jobs.values())

    @property
    def unfinished(self) -> int:
        """Jobs waiting or running, uploads for further ones included."""
        return self._taken

    @property
    def idle(self) -> bool:
        """Whether no job is running at the moment."""
        return self._running is None

    def cancel(self, id: str) -> Job:
        """End a queued job, or ask a running one to stop at its next step; 409 if it has ended."""
        job = self.get(id)
        with self._lock:
            if job.finished:
                raise RequestError(409, "job_ended", f"job {id} is {job.state} already")
            job.stop.set()
            queued = job.state == "queued"
            if queued:
                job.state = "cancelled"
        if queued:
            self._end(job, "cancelled")
        return job

    def close(self) -> None:
        """Stop the running job at its next step, drop the others, remove all uploads."""
        for job in self.all():
            with suppress(RequestError):
                self.cancel(job.id)
        self._thread.shutdown(wait=True)
        if self._workspace is not None:
            self._workspace.close()

    def _run(self, job: Job, work: Callable[[Job], Any]) -> None:
        with self._lock:
            if job.state != "queued":
                return
            job.state, job.started = "running", now()
            self._running = job
        state: State = "failed"
        try:
            job.show("starting")
            job.result = work(job)
            state = "done"
        except StoppedError:
            state = "cancelled"
        except CPromptError as error:
            job.error = {"code": _code(error), "message": job.explain(error)}
        except MemoryError:
            job.error = {"code": "memory", "message": "the service ran out of memory for this job"}
        except Exception as error:
            _log.exception("job %s failed", job.id)
            job.error = {
                "code": "internal",
                "message": f"an unexpected error ({type(error).__name__}); see the service's log",
            }
        self._running = None
        self._end(job, state)

    def _end(self, job: Job, state: State) -> None:
        self._free(job.folder)
        job.progress = Progress(state)
        job.upload = Upload([], job.upload.skipped)
        job.state, job.finished = state, now()
        self._on_end(job)

    def _free(self, folder: Path | None) -> None:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        with self._lock:
            self._taken -= 1


class Slot:
    """A place in the queue, with a private folder once one is asked for."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.folder: Path | None = None
        self.filled = False

    def make_folder(self) -> Path:
        """Where this job's photos go; removed when the job ends."""
        self.folder = self._workspace.new()
        return self.folder


class Workspace:
    """A private temporary folder of this process.

    It is locked while in use. One that a killed process left behind is not, and is removed by the
    next service that starts.
    """

    def __init__(self) -> None:
        for old in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            self._remove_if_abandoned(old)
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = FileLock(self._folder / _LOCK, thread_local=False)
        self._lock.acquire()

    def new(self) -> Path:
        """An empty folder in it."""
        return Path(tempfile.mkdtemp(dir=self._folder))

    def close(self) -> None:
        """Remove everything."""
        self._lock.release()
        shutil.rmtree(self._folder, ignore_errors=True)

    @staticmethod
    def _remove_if_abandoned(folder: Path) -> None:
        lock = FileLock(folder / _LOCK, timeout=0)
        try:
            mine = not hasattr(os, "getuid") or folder.lstat().st_uid == os.getuid()
            if folder.is_symlink() or not mine or not (folder / _LOCK).is_file():
                return
            lock.acquire()
        except (Timeout, OSError):
            return
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _code(error: CPromptError) -> str:
    return type(error).__name__.removesuffix("Error").lower()


def _yield_to_predictions() -> None:
    """Let predictions go before jobs where both want a processor."""
    with suppress(AttributeError, OSError):  # threads have a niceness of their own on Linux only
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
