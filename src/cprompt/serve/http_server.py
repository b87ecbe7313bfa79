"""uvicorn, set up so that nobody can hold it up by being slow or many, or fill its log."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any, ClassVar, Literal

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from cprompt.serve.config import Limits
from cprompt.serve.guard import UPLOADS
from cprompt.serve.sparing_log import log_sparingly

_KEEP_ALIVE_SECONDS = 30
_SHUTDOWN_SECONDS = 10
_GRACE_SECONDS = 5.0  # in which the service itself refuses a slow body, with an answer
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_log = logging.getLogger(__name__)


def server_config(app: ASGIApp, limits: Limits) -> uvicorn.Config:
    """How uvicorn serves `app` under these limits."""
    log_sparingly()
    own = {"limits": limits, "open_connections": Counter()}
    return uvicorn.Config(
        app,
        http=type("LimitedHTTP", (LimitedHTTP,), own),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )


class LimitedHTTP(H11Protocol):
    """uvicorn's HTTP/1.1 with time limits for a request's headers and body.

    uvicorn limits only the time between requests. Each server has its own subclass, with its
    limits and its count of open connections by client address.
    """

    limits: ClassVar[Limits]
    open_connections: ClassVar[Counter[str]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._address = ""
        self._begun = False
        self._awaited: Literal["headers", "body"] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection; one too many is closed at once."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self.open_connections[self._address] += 1
        if self.open_connections[self._address] > self.limits.max_connections:
            _log.warning("closed a connection: %s has too many open", self._address)
            transport.write(_TOO_MANY)
            transport.close()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no longer."""
        super().connection_lost(exc)
        self._stop_timer()
        self.open_connections[self._address] -= 1
        if self.open_connections[self._address] <= 0:
            del self.open_connections[self._address]

    def data_received(self, data: bytes) -> None:
        """Take part of a request."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Go on with the next request; a body that is still arriving is not waited for."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self.transport.close()
        self._watch()

    def _watch(self) -> None:
        """See what the client owes, and give it a time limit from when it began to."""
        awaited = self._awaited_now()
        if awaited == self._awaited or self.transport.is_closing():
            return
        self._stop_timer()
        self._awaited = awaited
        if awaited is not None:
            self._timer = self.loop.call_later(self._seconds(awaited), self._cut)

    def _awaited_now(self) -> Literal["headers", "body"] | None:
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            self._begun = True
            return "body"
        if state is not h11.IDLE:
            self._begun = True
            return None
        begun_again = bool(self.conn.trailing_data[0])  # between requests uvicorn's timer runs
        return "headers" if begun_again or not self._begun else None

    def _seconds(self, awaited: Literal["headers", "body"]) -> float:
        if awaited == "headers":
            return self.limits.header_seconds
        uploads = self.scope["path"] in UPLOADS
        seconds = self.limits.upload_seconds if uploads else self.limits.request_seconds
        return seconds + _GRACE_SECONDS

    def _cut(self) -> None:
        if self.transport.is_closing():
            return
        _log.warning("closed a connection: %s sent its %s too slowly", self._address, self._awaited)
        if self._awaited == "headers":
            self.transport.write(_TOO_SLOW)
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
