"""Clients that are slow on purpose, or too many, over raw sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from cprompt.serve import http_server
from cprompt.serve.config import Limits
from tests.serve.common import RED, ask, labels, photo
from tests.serve.fake import FakeClassifier
from tests.serve.live import running

HEADER_SECONDS, REQUEST_SECONDS, GRACE_SECONDS, MOST = 0.6, 0.8, 0.3, 5


@pytest.fixture
def url(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(http_server, "_GRACE_SECONDS", GRACE_SECONDS)
    limits = Limits(
        header_seconds=HEADER_SECONDS, request_seconds=REQUEST_SECONDS, max_connections=MOST
    )
    with running(model, settings={"limits": limits}, load=FakeClassifier.load) as address:
        yield address


def connect(url: str) -> socket.socket:
    where = urlsplit(url)
    assert where.hostname is not None
    assert where.port is not None
    return socket.create_connection((where.hostname, where.port), timeout=10)


def drip(connection: socket.socket, data: bytes, seconds: float = 8.0) -> tuple[bytes, float]:
    """Send byte by byte until the other side closes; what it said, and after how long."""
    start, said = time.monotonic(), b""
    connection.settimeout(0.05)
    while time.monotonic() - start < seconds:
        try:
            connection.send(data[:1])
            data = data[1:] or b"x"
            part = connection.recv(4096)
            if not part:
                break
            said += part
        except TimeoutError:
            continue
        except OSError:
            break
    return said, time.monotonic() - start


def test_slow_bodies_keep_nobody_out(model: Path) -> None:
    """As many as may be under way have sent their headers and part of a photo."""
    limits = Limits(max_waiting=2)
    head = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"
    with (
        running(model, settings={"limits": limits}, load=FakeClassifier.load) as url,
        ExitStack() as stack,
        httpx.Client(base_url=url) as client,
    ):
        for _ in range(4):
            connection = stack.enter_context(connect(url))
            connection.sendall(head + b"Content-Length: 9999\r\n\r\n" + b"x" * 100)
        time.sleep(0.2)
        for seed in range(3):
            assert labels(ask(client, photo(RED, seed))) == ["red"]


def test_headers_that_drip_are_cut(url: str) -> None:
    with connect(url) as connection:
        said, seconds = drip(connection, b"GET /healthz HTTP/1.1\r\nX-Long: " + b"a" * 10_000)
    assert said.startswith(b"HTTP/1.1 408 ")
    assert HEADER_SECONDS * 0.9 <= seconds < HEADER_SECONDS + 3


def test_a_connection_that_says_nothing_is_cut(url: str) -> None:
    with connect(url) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_headers_of_a_second_request_that_drip_are_cut_too(url: str) -> None:
    with connect(url) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        said, seconds = drip(connection, b"GET /healthz HTTP/1.1\r\nX-Long: " + b"a" * 10_000)
    assert b"408" in said
    assert seconds < HEADER_SECONDS + 3


@pytest.mark.parametrize(
    ("path", "kind"), [("/v1/predict", "image/png"), ("/v1/rename", "application/json")]
)
def test_a_body_that_drips_is_cut(url: str, path: str, kind: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
    with connect(url) as connection:
        connection.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode())
        _, seconds = drip(connection, b" " * 100_000, 15)
    assert seconds < 8


def test_a_body_that_nobody_reads_is_not_waited_for(url: str) -> None:
    with connect(url) as connection:
        connection.sendall(
            b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n"
        )
        said, seconds = drip(connection, b"a" * 99)
    assert said.startswith(b"HTTP/1.1 200 ")
    assert seconds < 2


def test_one_client_cannot_take_all_connections(url: str) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(MOST):
            held = stack.enter_context(connect(url))
            held.sendall(request)
            assert held.recv(4096).startswith(b"HTTP/1.1 200 ")
        with connect(url) as refused:
            assert refused.recv(4096).startswith(b"HTTP/1.1 503 ")
    end = time.monotonic() + 5
    while time.monotonic() < end:
        with connect(url) as again:
            again.sendall(request)
            if again.recv(4096).startswith(b"HTTP/1.1 200 "):
                return
    raise AssertionError("closed connections are still counted")


def test_whoever_sends_at_once_is_served_as_ever(url: str) -> None:
    with httpx.Client(base_url=url, timeout=30) as client:
        for seed in range(3):
            assert labels(ask(client, photo(RED, seed))) == ["red"]
            time.sleep(HEADER_SECONDS)  # between requests a connection may be kept open
