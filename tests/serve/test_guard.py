"""Who may do what: tokens, loopback, other sites' pages, and a service that only predicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cprompt.errors import ConfigError
from cprompt.serve.app import create_app
from cprompt.serve.config import Limits, ServeConfig, is_loopback
from tests.serve.common import (
    GREEN,
    RED,
    ask,
    error,
    finished,
    labels,
    photo,
    send_zip,
    teach,
    zipped,
)
from tests.serve.conftest import Serve
from tests.serve.fake import FakeClassifier

TOKEN = "correct-horse-battery"
EVERYTHING = [
    ("POST", "/v1/predict"),
    ("POST", "/v1/learn"),
    ("POST", "/v1/evaluate"),
    ("POST", "/v1/undo"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/1"),
    ("DELETE", "/v1/jobs/1"),
    ("GET", "/v1/model"),
    ("GET", "/metrics"),
]


def refused_at_start(model: Path, token: str | None = None, **settings: object) -> str:
    with pytest.raises(ConfigError) as refused:
        create_app(
            model,
            token=token,
            settings=ServeConfig(**settings),  # type: ignore[arg-type]
            load=FakeClassifier.load,  # type: ignore[arg-type]
        )
    return str(refused.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "example.org"])
def test_learning_beyond_this_machine_needs_a_token(model: Path, host: str) -> None:
    message = refused_at_start(model, host=host)
    assert host in message
    assert "CPROMPT_TOKEN" in message
    assert "--read-only" in message


@pytest.mark.parametrize(
    "token", ["", "short", "fifteen-letters", "with space in the middle", "ü" * 20]
)
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(model: Path, token: str) -> None:
    assert "the token must" in refused_at_start(model, token)


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_what_counts_as_loopback(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


@pytest.mark.parametrize("limit", ["max_pixels", "request_seconds", "max_jobs"])
def test_limits_must_be_positive(limit: str) -> None:
    with pytest.raises(ConfigError, match=f"{limit} 0 must be at least"):
        Limits(**{limit: 0})


@pytest.mark.parametrize(("method", "path"), EVERYTHING)
def test_with_a_token_nothing_is_done_without_it(serve: Serve, method: str, path: str) -> None:
    client = serve(token=TOKEN, host="0.0.0.0")
    for header in (
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN.upper()}",
        f"Basic {TOKEN}",
        TOKEN,
    ):
        headers = {} if header is None else {"Authorization": header}
        response = client.request(method, path, headers=headers)
        error(response, 401, "unauthorized")
        assert response.headers["www-authenticate"] == "Bearer"


def test_with_the_token_everything_works(serve: Serve) -> None:
    client = serve(token=TOKEN, host="0.0.0.0")
    client.headers["Authorization"] = f"Bearer {TOKEN}"
    assert finished(client, teach(client, "green", photo(GREEN)))["state"] == "done"
    assert labels(ask(client, photo(GREEN))) == ["green"]
    assert client.get("/metrics").status_code == 200
    evaluated = finished(
        client, send_zip(client, zipped({"red/a.png": photo(RED)}), "/v1/evaluate")
    )
    assert evaluated["result"]["accuracy"] == 1


def test_the_pages_and_health_need_no_token(serve: Serve) -> None:
    client = serve(token=TOKEN)
    for path in ("/", "/docs", "/openapi.json", "/healthz", "/readyz"):
        assert client.get(path).status_code == 200, path


def test_a_read_only_service_predicts_and_no_more(serve: Serve) -> None:
    client = serve(host="0.0.0.0", read_only=True)
    assert labels(ask(client, photo(RED))) == ["red"]
    error(teach(client, "green", photo(GREEN)), 403, "read_only")
    error(client.post("/v1/undo"), 403, "read_only")
    error(send_zip(client, zipped({"red/a.png": photo(RED)}), "/v1/evaluate"), 403, "needs_token")
    model = client.get("/v1/model").json()
    assert (model["learning"], model["evaluating"]) == (False, False)


def test_a_read_only_service_on_this_machine_can_still_be_evaluated(serve: Serve) -> None:
    client = serve(read_only=True)
    data = zipped({"red/a.png": photo(RED)})
    assert finished(client, send_zip(client, data, "/v1/evaluate"))["state"] == "done"
    error(send_zip(client, data), 403, "read_only")


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


def test_a_missing_model_is_an_error_at_start(tmp_path: Path) -> None:
    from cprompt.errors import ModelError

    with pytest.raises(ModelError, match="there is no model in"):
        create_app(tmp_path / "nowhere")
