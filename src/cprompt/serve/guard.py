"""Checks that every request passes first, and headers that every answer carries."""

from __future__ import annotations

import time
from urllib.parse import SplitResult, urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cprompt.serve.config import ServeConfig, is_loopback
from cprompt.serve.errors import RequestError
from cprompt.serve.metrics import Metrics

UPLOADS = ("/v1/learn", "/v1/evaluate")
"""Paths whose bodies may be as large as an upload."""

_SAFE = ("GET", "HEAD", "OPTIONS")
_METHODS = (*_SAFE, "POST", "PUT", "PATCH", "DELETE")
_DRAIN_SECONDS = 3.0
_DRAIN_BYTES = 64_000_000
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class Guard:
    """ASGI middleware around the whole service.

    - A service on loopback answers to loopback names only. Otherwise a web site could point its
      own name to 127.0.0.1, and its pages would count as the service's (DNS rebinding).
    - A request that changes something is refused if a browser sends it for another site's page.
    - A body is counted while it arrives and cut off at its limit.
    - Every answer carries headers that keep browsers careful.
    """

    def __init__(self, app: ASGIApp, config: ServeConfig, metrics: Metrics) -> None:
        self._app = app
        self._config = config
        self._metrics = metrics
        self._allowed = {name.lower() for name in config.allow_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 500
        headers = Headers(scope=scope)
        limits = self._config.limits
        body = _Body(
            receive,
            limits.max_upload if scope["path"] in UPLOADS else limits.max_body,
            expects_continue=headers.get("expect", "").lower() == "100-continue",
        )

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                sent = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    sent.setdefault(name, value)
                if status >= 400:
                    await body.drain()
            await send(message)

        try:
            try:
                self._check_sender(scope["method"], headers)
                body.check_length(headers.get("content-length"))
            except RequestError as error:
                await error.response()(scope, body.receive, answer)
            else:
                await self._app(scope, body.receive, answer)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            path = getattr(scope.get("route"), "path", "other")
            self._metrics.answered(method, path, status, time.perf_counter() - start)

    def _check_sender(self, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if self._config.on_loopback and not self._is_ours(host):
            raise RequestError(
                403,
                "wrong_host",
                f"this service does not answer to the name {host!r}; "
                "open it by its address, or start it with --allow-host NAME",
            )
        if method in _SAFE:
            return
        origin = headers.get("origin")
        from_elsewhere = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if origin is not None:
            site = _split(origin).netloc.lower()
            from_elsewhere = site != host.lower() and _name(site) not in self._allowed
        if from_elsewhere:
            raise RequestError(
                403,
                "cross_site",
                "a page of another site may not do this; use the service's own page, "
                "or a program that sends no Origin",
            )

    def _is_ours(self, host: str) -> bool:
        name = _name(host)
        return is_loopback(name) or name == self._config.host.lower() or name in self._allowed


class _Body:
    """A request's body, counted while it arrives."""

    def __init__(self, receive: Receive, limit: int, *, expects_continue: bool) -> None:
        self._receive = receive
        self._limit = limit
        self._count = 0
        self._ended = False
        self._waits = expects_continue  # the client sends nothing before it is asked to

    def check_length(self, length: str | None) -> None:
        """Refuse a body whose Content-Length is over the limit."""
        if length is not None and length.isdigit() and int(length) > self._limit:
            raise self._too_large()

    async def receive(self) -> Message:
        """The next part; a RequestError past the limit."""
        self._waits = False
        message = await self._receive()
        self._note(message)
        if self._count > self._limit:
            raise self._too_large()
        return message

    async def drain(self) -> None:
        """Receive the rest of the body for a moment before an error is sent.

        Many clients read the answer only after they have sent everything, and would find the
        connection broken instead.
        """
        if self._waits:
            return
        most = self._count + _DRAIN_BYTES
        with anyio.move_on_after(_DRAIN_SECONDS):
            while not self._ended and self._count < most:
                self._note(await self._receive())

    def _note(self, message: Message) -> None:
        self._count += len(message.get("body", b""))
        self._ended = message["type"] != "http.request" or not message.get("more_body", False)

    def _too_large(self) -> RequestError:
        return RequestError(
            413,
            "body_too_large",
            f"the request is larger than {self._limit:,} bytes; send less at once",
            rule=f"at most {self._limit:,} bytes",
        )


def _name(host: str) -> str:
    """The host of "host:port", without the brackets of IPv6."""
    return _split(f"//{host}").hostname or ""


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
