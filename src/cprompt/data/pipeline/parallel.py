"""Work spread over threads, with results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

DECODING_THREADS = min(16, (os.cpu_count() or 1) + 2)
VIEW_THREADS = min(4, os.cpu_count() or 1)
"""For cutting and resizing what the backbone sees next, which takes a tenth of its own time."""


_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Cores that this process may use, as far as the system says; a container may have few."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # not Linux, or no quota
        return cores


def map_in_order(
    function: Callable[[T], R], items: Iterable[T], threads: int
) -> Generator[R, None, None]:
    """Yield `function(item)` for each item, in order, computed ahead of the reader in threads.

    At most two results per thread wait to be read. An exception is raised in its item's place.
    When this generator is closed, its threads have ended. With 0 threads it is `map`.

    >>> list(map_in_order(abs, [-2, 1, -3], threads=2))
    [2, 1, 3]
    """
    if threads == 0:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads)
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > 2 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def ahead(items: Generator[T, None, None]) -> Generator[T, None, None]:
    """Yield the items; while the reader is busy with one, a thread gets the next.

    When this generator is closed, the thread has ended and `items` is closed.

    >>> list(ahead(i for i in range(3)))
    [0, 1, 2]
    """
    end = object()
    with closing(items), ThreadPoolExecutor(1) as thread:
        item = next(items, end)
        while item is not end:
            following = thread.submit(next, items, end)
            yield item  # type: ignore[misc]
            item = following.result()
