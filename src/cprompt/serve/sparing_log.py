"""Log lines that do not repeat: a client must not be able to fill the disk with them."""

from __future__ import annotations

import logging
import threading
import time

PAUSE_SECONDS = 60.0
"""After a line, the same one is not written again for so long."""

LOGGERS = (
    "uvicorn.error",
    "python_multipart.multipart",
    "cprompt.serve.errors",
    "cprompt.serve.http_server",
    "cprompt.serve.served_model",
)
"""Loggers whose lines a client can cause."""

_MOST_KEYS = 1000


class Sparing(logging.Filter):
    """Lets a line through if none like it was written lately; counts the others.

    Lines are alike if they differ only in their arguments, which a client may choose. Exceptions
    are alike if they were raised at the same place.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._seen: dict[tuple[object, ...], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the line; says how many were left out before it."""
        key = (record.name, record.levelno, str(record.msg), *_place(record))
        now = time.monotonic()
        with self._lock:
            last, left_out = self._seen.get(key, (-PAUSE_SECONDS, 0))
            if now - last < PAUSE_SECONDS:
                self._seen[key] = last, left_out + 1
                return False
            if len(self._seen) >= _MOST_KEYS:
                self._seen.clear()
            self._seen[key] = now, 0
        if left_out:
            record.msg = f"{record.getMessage()} (and {left_out} more like this before)"
            record.args = ()
        return True


def log_sparingly() -> None:
    """Make `LOGGERS` sparing; calling it again changes nothing."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, Sparing) for each in logger.filters):
            logger.addFilter(Sparing())


def _place(record: logging.LogRecord) -> tuple[object, ...]:
    """Where an exception that is logged was raised."""
    if not record.exc_info or record.exc_info[0] is None:
        return ()
    kind, _, traceback = record.exc_info
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return (kind,)
    return kind, traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
