"""Time limits of a request, on the event loop and in threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from cprompt.serve.errors import timed_out


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Cancel the block after `seconds` and raise a RequestError; for code on the event loop."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise timed_out(seconds) from None


class Deadline:
    """A point in time for code in a thread, which cannot be cancelled and must ask."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raise a RequestError if the time is up."""
        if time.monotonic() > self._end:
            raise timed_out(self._seconds)
