"""Images that are decoded in a thread while a run compiles and begins to learn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from cprompt.data.image_set import ImageSet
from cprompt.data.pipeline.decoded import DecodedImages, Progress
from cprompt.training.observers import Observer

Opener = Callable[[ImageSet, Progress], DecodedImages]

_opening = threading.Lock()
"""Of several runs in one process, the first decodes; the others find what it kept."""


class DecodedBeside(Observer, AbstractContextManager["DecodedBeside"]):
    """Opens sets of images one after another, in a thread.

    It watches the run: the step after a set could not be opened fails with the reason, so that
    nobody waits for the end of a task to learn it. Leaving the context stops what is under way.
    """

    def __init__(self, open_images: Opener, progress: Progress) -> None:
        """`progress` is told of the first set, then of the one that is waited for."""
        self._open = open_images
        self._progress = progress
        self._stopped = threading.Event()
        self._awaited: ImageSet | None = None
        self._opened: dict[int, Future[DecodedImages]] = {}
        self._thread = ThreadPoolExecutor(1)

    def begin(self, images: ImageSet, now: bool = False) -> None:
        """Open the set when those begun before are open; or, if `now`, before this returns."""
        begun = False
        if now or not self._opened:
            self._awaited = images

        def decoded(done: int, total: int) -> None:
            nonlocal begun
            if self._stopped.is_set():
                raise InterruptedError
            if self._awaited is images:
                if not begun and done > 1:
                    self._progress(1, total)  # with which a bar begins
                begun = True
                self._progress(done, total)

        if now:
            opened: Future[DecodedImages] = Future()
            opened.set_result(self._open(images, decoded))
        else:
            opened = self._thread.submit(self._open_alone, images, decoded)
        self._opened[id(images)] = opened

    def _open_alone(self, images: ImageSet, decoded: Progress) -> DecodedImages:
        with _opening:
            return self._open(images, decoded)

    def wait_for(self, images: ImageSet) -> DecodedImages:
        """The set, once it is open."""
        self._awaited = images
        return self._opened[id(images)].result()

    def stepped(self, epoch: int, names: tuple[str, ...], losses: Tensor) -> None:
        """Raise what kept a set from being opened."""
        for opened in self._opened.values():
            if opened.done():
                opened.result()

    def __exit__(self, *_: Any) -> None:
        self._stopped.set()
        self._thread.shutdown(cancel_futures=True)
