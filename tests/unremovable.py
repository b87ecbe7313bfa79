"""Photos that can be read and not removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest


def unremovable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the folder could be read and not be written."""
    unlink = Path.unlink

    def refused(path: Path, missing_ok: bool = False) -> None:
        if path.parent == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
