"""The folder beside the model in which a service keeps its jobs and their uploads."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from cprompt.errors import ConfigError

JOBS = "jobs.sqlite"
_UPLOADS, _SERVICES = "uploads", "services"
_STARTING_SECONDS = 60.0  # within which a service that starts has taken its lock


class Workspace:
    """A private folder, which several services of the same model share.

    Each service has a name of its own there, and a lock that it holds while it lives. A killed one
    leaves its lock free: the next service that starts takes its jobs over and removes the rest.
    """

    def __init__(self, folder: Path, *, or_temporary: bool = False) -> None:
        """With `or_temporary`, a temporary folder takes its place where it cannot be made."""
        self.folder = folder
        self.service = secrets.token_hex(4)
        self._lock: FileLock | None = None
        self._temporary = False
        there = next(each for each in (folder, *folder.parents) if each.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            if not or_temporary:
                raise _no_room(folder, "no permission")
            self._temporary = True

    def open(self) -> None:
        """Make the folder, and say that this service lives."""
        try:
            if self._temporary:
                self.folder = Path(tempfile.mkdtemp(prefix="cprompt-serve-"))
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for part in (_UPLOADS, _SERVICES):
                (self.folder / part).mkdir(mode=0o700, exist_ok=True)
            self._lock = FileLock(self._lock_file(self.service), timeout=5, thread_local=False)
            self._lock.acquire()
        except OSError as error:
            raise _no_room(self.folder, error.strerror or str(error)) from error

    def close(self) -> None:
        """Say that this service lives no longer."""
        if self._lock is not None:
            self._lock.release()
            self._lock_file(self.service).unlink(missing_ok=True)
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def new_folder(self) -> Path:
        """An empty folder for an upload."""
        return Path(tempfile.mkdtemp(prefix=f"{self.service}-", dir=self.folder / _UPLOADS))

    def upload(self, name: str) -> Path:
        """The folder of an upload, by its name."""
        return self.folder / _UPLOADS / Path(name).name

    def lives(self, service: str) -> bool:
        """Whether the service of that name still runs."""
        if service == self.service:
            return True
        lock = FileLock(self._lock_file(service), timeout=0)
        try:
            if not self._lock_file(service).is_file():
                return False
            lock.acquire()
        except (Timeout, OSError):
            return True
        lock.release()
        self._lock_file(service).unlink(missing_ok=True)
        return False

    def sweep(self, needed: Collection[str]) -> None:
        """Remove what killed services left: uploads that no job needs, by name, and locks."""
        with suppress(OSError):
            for folder in (self.folder / _UPLOADS).iterdir():
                if folder.name not in needed and not self.lives(folder.name.split("-")[0]):
                    shutil.rmtree(folder, ignore_errors=True)
            for lock in (self.folder / _SERVICES).glob("*.lock"):
                if time.time() - lock.stat().st_mtime > _STARTING_SECONDS:
                    self.lives(lock.stem)  # removes it if not

    def _lock_file(self, service: str) -> Path:
        return self.folder / _SERVICES / f"{service}.lock"


def _no_room(folder: Path, why: str) -> ConfigError:
    return ConfigError(
        f"jobs and their uploads cannot be kept in {folder} ({why})",
        hint="name another folder with --state",
    )
