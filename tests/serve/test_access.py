"""Who may do what: tokens, and services that only predict."""

from __future__ import annotations

import pytest

from cprompt.errors import ConfigError
from tests.serve.common import (
    EVERYTHING,
    GREEN,
    RED,
    TOKEN,
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
    error(client.post("/v1/forget", json={"label": "red"}), 403, "read_only")
    error(client.post("/v1/merge", json={"label": "red", "into": "blue"}), 403, "read_only")
    error(client.post("/v1/rename", json={"label": "red", "new": "rose"}), 403, "read_only")
    error(send_zip(client, zipped({"red/a.png": photo(RED)}), "/v1/evaluate"), 403, "needs_token")
    model = client.get("/v1/model").json()
    assert (model["learning"], model["evaluating"]) == (False, False)


def test_a_read_only_service_on_this_machine_can_still_be_evaluated(serve: Serve) -> None:
    client = serve(read_only=True)
    data = zipped({"red/a.png": photo(RED)})
    assert finished(client, send_zip(client, data, "/v1/evaluate"))["state"] == "done"
    error(send_zip(client, data), 403, "read_only")


ASK, TEACH = "ask-correct-horse", "teach-battery-staple"


def test_a_token_for_asking_looks_and_predicts_and_no_more(serve: Serve) -> None:
    client = serve(tokens={"ask_token": ASK, "teach_token": TEACH}, host="0.0.0.0")
    error(ask(client, photo(RED)), 401, "unauthorized")
    client.headers["Authorization"] = f"Bearer {ASK}"
    assert labels(ask(client, photo(RED))) == ["red"]
    model = client.get("/v1/model").json()
    assert (model["learning"], model["evaluating"]) == (False, False)
    assert client.get("/v1/jobs").json() == []
    for refused in (
        teach(client, "green", photo(GREEN)),
        send_zip(client, zipped({"red/a.png": photo(RED)}), "/v1/evaluate"),
        client.post("/v1/undo"),
        client.post("/v1/rename", json={"label": "red", "new": "rose"}),
        client.delete("/v1/jobs/1"),
    ):
        error(refused, 403, "only_asks")
    client.headers["Authorization"] = f"Bearer {TEACH}"
    assert client.get("/v1/model").json()["learning"] is True
    assert finished(client, teach(client, "green", photo(GREEN)))["state"] == "done"


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"ask_token": ASK}, "nobody could teach"),
        ({"ask_token": "", "teach_token": TEACH}, "is empty"),
        ({"teach_token": ""}, "is empty"),
        ({"token": ""}, "is empty"),
        ({"ask_token": ASK, "teach_token": ASK}, "are the same"),
        ({"token": TEACH, "ask_token": ASK}, "not both"),
    ],
)
def test_tokens_that_make_no_sense_are_refused(
    serve: Serve, tokens: dict[str, str], message: str
) -> None:
    token = tokens.pop("token", None)
    with pytest.raises(ConfigError, match=message):
        serve(token=token, tokens=tokens)
