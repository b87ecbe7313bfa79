"""How a command's process behaves: among its neighbours, while it starts, and at its end."""

from __future__ import annotations

import atexit
import ctypes
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
    than falling asleep. How long a turn takes depends on the processor: with twenty times as many
    an AMD EPYC, where neighbours are busy, was half as fast. OpenMP reads both when torch is
    imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as in glibc's malloc.h


def keep_freed_memory() -> None:
    """Have glibc keep some hundred megabytes that were freed instead of giving them back at once.

    A pass frees what one layer needed and asks for as much in the next. Fresh memory must be
    cleared page by page, which took a fifth of the time of reading all layers of a ViT-Ti. Does
    nothing where the C library is another one.
    """
    if not sys.platform.startswith("linux"):
        return
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is not None:
        change(_TRIM_THRESHOLD, 256 * 2**20)
        change(_MMAP_THRESHOLD, 32 * 2**20)  # the most that glibc takes


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
