"""Decoded images: each file is decoded once, and its pixels are kept on disk or in memory.

A set kept on disk is one file of raw bytes and an index beside it, named by the content of all its
image files. They are read and hashed at every opening, which is cheap next to decoding them, so
what is found is never stale.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from cprompt.data.image_files import read_image

T = TypeVar("T")
R = TypeVar("R")
Picture: TypeAlias = NDArray[np.uint8]
Progress: TypeAlias = Callable[[int, int], None]

DECODING_THREADS = min(16, (os.cpu_count() or 1) + 2)


class Pixels:
    """The decoded images of a set, by number: (h, w, 3) uint8, not to be written to."""

    def __init__(
        self,
        load: Callable[[int], Picture],
        sizes: NDArray[np.int64] | None,
        numbers: NDArray[np.int64],
    ) -> None:
        """Image i is `load(numbers[i])`, of `sizes[i]`; without sizes, loading decodes it."""
        self._load = load
        self._numbers = numbers
        self.sizes = sizes
        """(n, 2): height and width of each image; None where only decoding tells."""

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Picture:
        return self._load(int(self._numbers[index]))

    def subset(self, indices: Sequence[int] | NDArray[np.int64]) -> Pixels:
        """The images at `indices`, in that order; no pixel is copied."""
        chosen = np.asarray(indices, dtype=np.int64)
        sizes = None if self.sizes is None else self.sizes[chosen]
        return Pixels(self._load, sizes, self._numbers[chosen])


def in_order(
    function: Callable[[T], R], items: Iterable[T], threads: int
) -> Generator[R, None, None]:
    """`function` of each item, in order, worked out ahead of the reader in that many threads.

    At most two results a thread wait to be read. An exception is raised in its item's place. When
    this generator is closed, its threads have ended. With 0 threads it is `map`.
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


# --- decoding -----------------------------------------------------------------------------------


def in_memory(files: Sequence[Path], progress: Progress | None) -> Pixels:
    """Decode all files now and keep them in memory."""
    images = []
    for image in in_order(lambda file: np.asarray(read_image(file)), files, DECODING_THREADS):
        images.append(image)
        if progress:
            progress(len(images), len(files))
    sizes = np.array([p.shape[:2] for p in images], dtype=np.int64).reshape(-1, 2)
    return Pixels(images.__getitem__, sizes, np.arange(len(files)))
