"""Host names, other sites' pages, the size of bodies, and the headers of answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from starlette.testclient import TestClient

from tests.serve.common import (
    EVERYTHING,
    RED,
    ask,
    error,
    labels,
    photo,
)
from tests.serve.conftest import Serve


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[", "10.0.0.1"]
)
def test_a_service_on_loopback_answers_to_no_other_name(client: TestClient, host: str) -> None:
    for path in ("/", "/v1/model", "/openapi.json"):
        error(client.get(path, headers={"Host": host}), 403, "wrong_host")
    error(ask(client, photo(RED), headers={"Host": host}), 403, "wrong_host")


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST"])
def test_a_service_on_loopback_answers_to_its_names(client: TestClient, host: str) -> None:
    assert labels(ask(client, photo(RED), headers={"Host": host})) == ["red"]


def test_further_names_can_be_allowed(serve: Serve) -> None:
    client = serve(allow_hosts=("photos.example",))
    headers = {"Host": "photos.example", "Origin": "https://photos.example"}
    assert labels(ask(client, photo(RED), headers=headers)) == ["red"]
    behind_a_proxy = {"Host": "127.0.0.1:8000", "Origin": "https://photos.example"}
    assert labels(ask(client, photo(RED), headers=behind_a_proxy)) == ["red"]
    error(ask(client, photo(RED), headers={"Host": "other.example"}), 403, "wrong_host")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:9000"},
        {"Origin": "http://localhost.evil.example:8000"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_sites_page_can_change_nothing(client: TestClient, headers: dict[str, str]) -> None:
    before = client.get("/v1/model").json()
    for method, path in EVERYTHING:
        if method != "GET":
            error(client.request(method, path, headers=headers), 403, "cross_site")
    assert client.get("/v1/model").json() == before


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {},
    ],
)
def test_the_services_own_page_and_programs_can(
    client: TestClient, headers: dict[str, str]
) -> None:
    assert labels(ask(client, photo(RED), headers=headers)) == ["red"]


@pytest.mark.parametrize("path", ["/", "/docs", "/v1/model", "/healthz", "/nowhere"])
def test_every_answer_has_headers_that_keep_browsers_careful(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers
    if path.startswith("/v1"):
        assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("path", "most"), [("/v1/predict", 100_000), ("/v1/learn", 300_000)])
def test_a_body_that_says_it_is_too_large_is_not_read(
    hardy: TestClient, path: str, most: int
) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    detail = error(
        hardy.post(path, content=bytes(most + 1), headers=headers), 413, "body_too_large"
    )
    assert detail["rule"] == f"at most {most:,} bytes"


@pytest.mark.parametrize("kind", ["image/png", "multipart/form-data; boundary=x"])
def test_a_body_is_cut_off_where_it_gets_too_large(hardy: TestClient, kind: str) -> None:
    def chunks() -> Iterator[bytes]:
        start = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
        yield start if "multipart" in kind else b""
        for _ in range(100):
            yield bytes(10_000)

    response = hardy.post("/v1/predict", content=chunks(), headers={"Content-Type": kind})
    error(response, 413, "body_too_large")


def test_a_body_that_lies_about_its_length_is_still_counted(serve: Serve) -> None:
    app = serve(limits={"max_body": 1000}).app
    parts = iter([bytes(600)] * 5)
    answers: list[Any] = []

    async def receive() -> dict[str, Any]:
        part = next(parts, None)
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": True}

    async def send(message: Any) -> None:
        answers.append(message)

    headers = {"host": "127.0.0.1", "content-type": "image/png", "content-length": "5"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/predict",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    anyio.run(app, scope, receive, send)
    assert answers[0]["status"] == 413
