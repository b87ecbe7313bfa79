"""A fresh interpreter, for what depends on which modules are imported already."""

from __future__ import annotations

import os
import subprocess
import sys


def printed(code: str, **variables: str) -> str:
    """What a program prints; it must not fail. `variables` join those of the environment."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
