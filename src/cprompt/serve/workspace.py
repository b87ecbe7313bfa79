"""The private temporary folder in which uploads wait for their jobs."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

_PREFIX = "cprompt-serve-"
_LOCK = ".lock"


class Workspace:
    """A private temporary folder of this process.

    It is locked while in use. A killed process leaves its folder unlocked, and the next service
    that starts removes it.
    """

    def __init__(self) -> None:
        for old in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            _remove_if_abandoned(old)
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = FileLock(self.folder / _LOCK, thread_local=False)
        self._lock.acquire()

    def new_folder(self) -> Path:
        """An empty folder inside."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def close(self) -> None:
        """Remove everything."""
        self._lock.release()
        shutil.rmtree(self.folder, ignore_errors=True)


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
