"""Work that must not wait for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def soon(work: Callable[[], T], seconds: float = 20) -> T:
    """What `work` returns or raises; a TimeoutError if it takes longer than `seconds`."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result(seconds)
