"""Jobs on disk: what a service has promised to do, kept until it is done."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cprompt.errors import ConfigError
from cprompt.serve.errors import RequestError
from cprompt.serve.job import Job, Progress
from cprompt.serve.uploads import Upload, UploadedPhoto

_WAIT_SECONDS = 30.0
_TABLE = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT UNIQUE NOT NULL,
    service TEXT NOT NULL,
    ended INTEGER NOT NULL,
    about TEXT NOT NULL
)
"""
_KEPT_AS_THEY_ARE = (
    "kind",
    "id",
    "arguments",
    "expects",
    "role",
    "photos",
    "created",
    "state",
    "started",
    "finished",
    "error",
    "result",
    "warnings",
    "promise",
    "cancelled",
    "starts",
)


class JobStore:
    """A table of jobs in one SQLite file, shared by all services of a model.

    Every change is on the disk when its method returns. `service` is the one that does the job.
    """

    def __init__(self, file: Path, upload_folder: Callable[[str], Path]) -> None:
        """`upload_folder` gives the folder of an upload by its name."""
        self._folder = upload_folder
        self._lock = threading.RLock()
        try:
            self._database = sqlite3.connect(
                file, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute(_TABLE)
        except sqlite3.Error as error:
            raise ConfigError(
                f"{file} cannot be read as a list of jobs ({error})",
                hint="move it away to begin with an empty list",
            ) from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def put(self, job: Job, service: str) -> None:
        """Add a job, or what has become of it; a job that has ended on disk is left as it is.

        The job is read under the lock that the row is written under: of two threads that put the
        same job, the later one does not write an older state.
        """
        with self._lock:
            self._execute(
                "INSERT INTO jobs (id, service, ended, about) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET service = excluded.service, "
                "ended = excluded.ended, about = excluded.about "
                "WHERE excluded.ended >= jobs.ended",
                _row(job, service),
            )

    def get(self, id: str) -> Job | None:
        """The job of that id."""
        found = self._execute("SELECT about FROM jobs WHERE id = ?", (id,))
        return self._job(found[0][0]) if found else None

    def all(self) -> list[Job]:
        """All jobs, oldest first."""
        return [
            self._job(about) for (about,) in self._execute("SELECT about FROM jobs ORDER BY number")
        ]

    def take_over(self, service: str, lives: Callable[[str], bool]) -> list[Job]:
        """Make the unfinished jobs of services that live no longer `service`'s; oldest first."""
        taken = []
        with self._transaction():
            rows = self._database.execute(
                "SELECT id, service, about FROM jobs WHERE NOT ended ORDER BY number"
            ).fetchall()
            for id, owner, about in rows:
                if owner != service and not lives(owner):
                    self._database.execute(
                        "UPDATE jobs SET service = ? WHERE id = ?", (service, id)
                    )
                    taken.append(self._job(about))
        return taken

    def drop_old(self, kept: int) -> None:
        """Forget all ended jobs but the last `kept`."""
        self._execute(
            "DELETE FROM jobs WHERE ended AND number NOT IN "
            "(SELECT number FROM jobs WHERE ended ORDER BY number DESC LIMIT ?)",
            (kept,),
        )

    def _job(self, about: str) -> Job:
        kept: dict[str, Any] = json.loads(about)
        folder = None if kept["folder"] is None else self._folder(kept["folder"])
        photos = [
            UploadedPhoto((folder or Path()) / Path(file).name, label, name)
            for file, label, name in kept["files"]
        ]
        job = Job(kept["kind"], Upload(photos, kept["skipped"]), folder)
        for name in _KEPT_AS_THEY_ARE:
            if name in kept:  # a service of an earlier version may have put it there
                setattr(job, name, kept[name])
        job.progress = Progress(job.state if job.finished else "waiting")
        return job

    def _execute(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            with self._lock:
                return self._database.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if "full" in str(error):
                message = "the service has no room on its disk for this job"
                raise RequestError(507, "disk_full", message) from error
            raise

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")


def _row(job: Job, service: str) -> tuple[str, str, int, str]:
    """A job as a row of the table, without its number."""
    about = {name: getattr(job, name) for name in _KEPT_AS_THEY_ARE}
    about["folder"] = None if job.folder is None else job.folder.name
    about["skipped"] = job.upload.skipped
    about["files"] = [[photo.path.name, photo.label, photo.name] for photo in job.upload.photos]
    return job.id, service, int(job.finished is not None), json.dumps(about)
