"""How a command's process behaves: among its neighbours, while it starts, and at its end."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Mapping
from typing import Any

_IMPORTED = 500_000
"""Objects that exist once torch and timm are imported, roughly."""
_COUNT_WHAT_IS_LEFT = ("onnx", "triton")
"""Modules that print a list of their objects if any are left when the process ends."""


def let_threads_sleep() -> None:
    """Have PyTorch's threads sleep, not spin, while they wait for each other.

    Every operation ends in a wait, and a spinning thread keeps its core from whoever has work; see
    benchmarks/neighbours.py. GNU's OpenMP may spin for some microseconds: most waits are shorter
    than falling asleep. OpenMP reads both when torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def collect_garbage_later() -> None:
    """Do not search for garbage while modules are imported, nor when the process ends.

    Python would search half a million objects again and again and find next to nothing, for up to
    a second. From the first search on, imported objects are left out and Python's own thresholds
    hold.
    """
    usual = gc.get_threshold()
    if usual[0] >= _IMPORTED:  # called before
        return

    def began(phase: str, _: Mapping[str, Any]) -> None:
        if phase == "stop":
            gc.callbacks.remove(began)
            gc.set_threshold(*usual)
            gc.freeze()

    gc.set_threshold(_IMPORTED)
    gc.callbacks.append(began)
    atexit.register(_end)


def _end() -> None:
    if any(name in sys.modules for name in _COUNT_WHAT_IS_LEFT):
        gc.unfreeze()
    else:
        gc.freeze()
