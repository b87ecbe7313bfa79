"""Jobs in the background: one at a time, none lost when the service stops or is killed."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cprompt.errors import CPromptError
from cprompt.serve.errors import RequestError, busy, explain
from cprompt.serve.job import Job, Kind, Progress, State, StoppedError, now
from cprompt.serve.job_store import JobStore
from cprompt.serve.uploads import Upload
from cprompt.serve.workspace import JOBS, Workspace

KEPT = 100
"""Finished jobs that are remembered."""

MOST_STARTS = 100
"""How often a job is begun: one that kills the service each time must not do so for ever. Who
killed it cannot be told, so the number is far beyond what restarts from outside would need."""

_NICENESS = 10
_log = logging.getLogger(__name__)


class JobQueue:
    """A bounded queue of jobs, run one after the other in a single thread.

    A job is on the disk before its client hears of it. What a stopped or killed service leaves
    unfinished, the next one that starts with the same workspace finishes.
    """

    def __init__(
        self,
        workspace: Workspace,
        max_jobs: int,
        work: Callable[[Job], dict[str, Any] | None],
        *,
        private: Collection[str] = (),
        on_end: Callable[[Job], None] = lambda job: None,
    ) -> None:
        """At most `max_jobs` jobs wait or run at a time; `on_end` is called with each that ended.

        `work` does a job, may take its time, and returns a result that is plain JSON.
        `private` are folders that no error may mention to a client.
        """
        self._max_jobs = max_jobs
        self._work = work
        self._private = private
        self._on_end = on_end
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._taken = 0
        self._running: Job | None = None
        self._closing = threading.Event()
        self._workspace = workspace
        self._store: JobStore | None = None
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="cprompt-job", initializer=_yield_to_predictions
        )

    def start(self) -> None:
        """Begin to take uploads, and go on with what earlier services left."""
        work = self._workspace
        work.open()
        self._store = store = JobStore(work.folder / JOBS, work.upload)
        left = store.take_over(work.service, work.lives)
        work.sweep([job.folder.name for job in store.all() if job.folder and not job.finished])
        for job in left:
            with self._lock:
                self._jobs[job.id] = job
                self._taken += 1
            job.state = "queued"
            self._thread.submit(self._run, job)

    @contextmanager
    def slot(self) -> Iterator[Slot]:
        """A place in the queue, taken before an upload is read; 503 if there is none.

        If no job is added to it, the place is free again after the block and its folder is removed.
        """
        with self._lock:
            if self._taken >= self._max_jobs:
                raise busy(f"{self._max_jobs} jobs are waiting or under way; try again later", 10)
            self._taken += 1
        slot = Slot(self._workspace)
        try:
            yield slot
        finally:
            if not slot.filled:
                self._free(slot.folder)

    def add(
        self,
        slot: Slot,
        kind: Kind,
        upload: Upload | None = None,
        arguments: Mapping[str, str] | None = None,
        expects: str | None = None,
        role: str = "anyone",
    ) -> Job:
        """Queue a job with the photos and the words that its kind needs; see `Job.expects`."""
        words = dict(arguments or {})
        job = Job(kind, upload or Upload([], []), slot.folder, words, expects, role)
        self._drop_old()
        self.record(job)  # nothing after it may fail: the job would be done, despite the error
        with self._lock:
            self._jobs = {id: each for id, each in self._jobs.items() if not each.finished}
            self._jobs[job.id] = job
        slot.filled = True
        try:
            self._thread.submit(self._run, job)
        except RuntimeError as error:
            _log.warning("job %s waits, it cannot be begun now: %s", job.id, error)
        return job

    def get(self, id: str) -> Job:
        """The job with that id; 404 if there is none."""
        with self._lock:
            job = self._jobs.get(id)
        job = job or self._disk.get(id)
        if job is None:
            raise RequestError(404, "no_such_job", f"there is no job {id!r}, or it ended long ago")
        return job

    def all(self) -> list[Job]:
        """The jobs that are remembered, oldest first, those of other services included."""
        with self._lock:
            mine = dict(self._jobs)
        return [mine.get(job.id, job) for job in self._disk.all()]

    def record(self, job: Job) -> None:
        """Put what has become of a job on the disk."""
        self._disk.put(job, self._workspace.service)

    @property
    def unfinished(self) -> int:
        """Jobs waiting or running, and uploads that will become jobs."""
        return self._taken

    @property
    def idle(self) -> bool:
        """Whether no job is running at the moment."""
        return self._running is None

    def cancel(self, id: str) -> Job:
        """End a queued job, or ask a running one to stop at its next step; 409 if it has ended."""
        job = self.get(id)
        with self._lock:
            if job.finished or job.ending:
                state = job.state if job.finished else "ending"
                raise RequestError(409, "job_ended", f"job {id} is already {state}")
            if id not in self._jobs:
                raise RequestError(409, "not_here", "another service of this model has this job")
            queued = job.state == "queued"
            if queued:
                job.state = "cancelled"
            job.cancelled = True
        if queued:
            self._end(job, "cancelled")
        else:
            self.record(job)  # so that it is not begun again if the service is killed now
            job.stop.set()
        return job

    def close(self) -> None:
        """Stop the running job at its next step; it and those waiting are left for the next."""
        if self._store is None:
            return
        self._closing.set()
        with self._lock:
            for job in self._jobs.values():
                job.stop.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._store.close()
        self._workspace.close()

    @property
    def _disk(self) -> JobStore:
        assert self._store is not None, "the job queue was not started"
        return self._store

    def _drop_old(self) -> None:
        """Forget the oldest ended jobs; if that fails, the next job that is added tries again."""
        try:
            self._disk.drop_old(KEPT)
        except (RequestError, sqlite3.Error) as error:
            _log.warning("old jobs cannot be dropped: %s", error)

    def _run(self, job: Job) -> None:
        with self._lock:
            if job.state != "queued" or self._closing.is_set():
                return
            job.state, job.started = "running", now()
            job.starts += 1
            if job.cancelled and job.promise is None:
                job.stop.set()
            self._running = job
        state: State = "failed"
        try:
            self.record(job)
            job.show("starting")
            self._check(job)
            job.result = self._work(job)
            state = "done"
        except StoppedError:
            if self._closing.is_set() and not job.cancelled:
                self._leave(job)
                return
            state = "cancelled"
        except RequestError as error:
            job.error = error.detail()
        except CPromptError as error:
            job.error = self._explain(error, job)
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

    def _check(self, job: Job) -> None:
        """Whether a job that was begun before, by a service that was killed, can be begun again."""
        if job.starts > MOST_STARTS:
            message = f"the service was stopped {MOST_STARTS} times in the middle of this job"
            raise RequestError(500, "killed", message)
        # Once it was about to be saved, it may not need them any more.
        if job.promise is None and not all(p.path.is_file() for p in job.upload.photos):
            raise RequestError(
                500, "uploads_lost", "the photos of this job are gone; send them again"
            )

    def _leave(self, job: Job) -> None:
        """Leave a job that this service stops for its own sake to the next one."""
        job.state, job.started = "queued", None
        job.starts -= 1
        self.record(job)
        self._running = None

    def _explain(self, error: CPromptError, job: Job) -> dict[str, Any]:
        """What `Job.error` tells the client, in the fields of a refused request."""
        private = [*self._private, str(self._workspace.folder)]
        message, file = explain(error, private=private, names=job.upload.sent_names())
        code = type(error).__name__.removesuffix("Error").lower()
        return RequestError(422, code, message, file=file).detail()

    def _end(self, job: Job, state: State) -> None:
        """Put the end on the disk first, then remove the photos, which may take seconds.

        Before both, tell who wants to know: a kill now makes them hear of it again, never not.
        """
        with self._lock:
            job.ending = True
        folder, job.folder = job.folder, None
        job.progress = Progress(state)
        job.upload = Upload([], job.upload.skipped)
        ended = replace(job, state=state, finished=now())
        ended.photos = job.photos
        self._on_end(ended)
        try:
            self.record(ended)
        except (RequestError, sqlite3.Error):
            _log.exception("the end of job %s cannot be written down", job.id)
        self._free(folder)
        job.state, job.finished = ended.state, ended.finished

    def _free(self, folder: Path | None) -> None:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        with self._lock:
            self._taken -= 1


class Slot:
    """A place in the queue, with a private folder if one is needed."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.folder: Path | None = None
        self.filled = False

    def make_folder(self) -> Path:
        """Make the folder for this job's photos; it is removed when the job ends."""
        self.folder = self._workspace.new_folder()
        return self.folder


def _yield_to_predictions() -> None:
    """Give predictions priority over jobs where both want a processor."""
    with suppress(AttributeError, OSError):  # threads have a niceness of their own on Linux only
        thread = threading.get_native_id()
        usual = os.getpriority(os.PRIO_PROCESS, thread)  # the service itself may run under `nice`
        os.setpriority(os.PRIO_PROCESS, thread, usual + _NICENESS)
