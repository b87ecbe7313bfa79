"""Learning and evaluation in the background: one job at a time, nothing left behind."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cprompt.errors import CPromptError
from cprompt.serve.errors import RequestError, busy, explain
from cprompt.serve.job import Job, Kind, Progress, State, StoppedError, now
from cprompt.serve.uploads import Upload
from cprompt.serve.workspace import Workspace

KEPT = 100
"""Finished jobs that are remembered."""

_NICENESS = 10
_log = logging.getLogger(__name__)


class JobQueue:
    """A bounded queue of jobs, run one after the other in a single thread."""

    def __init__(
        self,
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

        If no job is added to it, the place is free again after the block and its folder is removed.
        """
        assert self._workspace is not None, "the job queue was not started"
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
    ) -> Job:
        """Queue a job with the photos and the words that its kind needs; see `Job.expects`."""
        words = dict(arguments or {})
        job = Job(kind, upload or Upload([], []), slot.folder, words, expects)
        with self._lock:
            self._jobs[job.id] = job
            finished = [j.id for j in self._jobs.values() if j.finished]
            for old in finished[: max(len(finished) - KEPT, 0)]:
                del self._jobs[old]
        slot.filled = True
        self._thread.submit(self._run, job)
        return job

    def get(self, id: str) -> Job:
        """The job with that id; 404 if there is none."""
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
            if job.finished:
                raise RequestError(409, "job_ended", f"job {id} is already {job.state}")
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

    def _run(self, job: Job) -> None:
        with self._lock:
            if job.state != "queued":
                return
            job.state, job.started = "running", now()
            self._running = job
        state: State = "failed"
        try:
            job.show("starting")
            job.result = self._work(job)
            state = "done"
        except StoppedError:
            state = "cancelled"
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

    def _explain(self, error: CPromptError, job: Job) -> dict[str, Any]:
        """What `Job.error` tells the client, in the fields of a refused request."""
        assert self._workspace is not None
        private = [*self._private, str(self._workspace.folder)]
        message, file = explain(error, private=private, names=job.upload.sent_names())
        code = type(error).__name__.removesuffix("Error").lower()
        return RequestError(422, code, message, file=file).detail()

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
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
