"""A folder that others change: their versions are served, their locks are waited for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from starlette.testclient import TestClient

from cprompt.classifier import model_folder
from cprompt.serve import served_model
from cprompt.serve.served_model import ServedModel, loading
from tests.serve.common import (
    GREEN,
    GREY,
    RED,
    ask,
    ended,
    error,
    finished,
    image,
    labels,
    photo,
    teach,
)
from tests.serve.conftest import Serve
from tests.serve.fake import FakeClassifier


def learn_elsewhere(model: Path, label: str, colour: tuple[int, int, int]) -> str:
    """What `cprompt learn` does in another process; the new version."""
    with model_folder.writing(model):
        other = FakeClassifier.load(model)
        other.learn([(image(colour), label)])
        other.save(model)
    return other.model_id


def within(seconds: float, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.02)


def test_auto_is_settled_when_the_service_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job loads the model too: on a busy machine bf16 might not look faster then."""
    asked: list[dict[str, object]] = []

    class Loaded:
        precision = "bf16"

        @classmethod
        def load(cls, path: Path, **how: object) -> Loaded:
            asked.append(how)
            return cls()

    monkeypatch.setattr(served_model, "ContinualClassifier", Loaded)
    load = loading("cpu", "auto", "weights.pth")
    load(tmp_path)
    Loaded.precision = "fp32"
    load(tmp_path)
    assert asked == [
        {"device": "cpu", "precision": precision, "weights": "weights.pth"}
        for precision in ("auto", "bf16")
    ]


def test_what_others_learn_and_undo_is_served_within_a_second(
    client: TestClient, model: Path
) -> None:
    assert labels(ask(client, photo(GREEN))) == ["unknown"]
    new = learn_elsewhere(model, "green", GREEN)
    within(1, lambda: labels(ask(client, photo(GREEN))) == ["green"])
    assert ask(client, photo(GREEN)).json()["model"] == new
    model_folder.undo(model)
    within(1, lambda: labels(ask(client, photo(GREEN))) == ["unknown"])


def test_a_second_server_serves_what_the_first_has_learnt(serve: Serve) -> None:
    first, second = serve(), serve()
    job = finished(first, teach(first, "green", photo(GREEN)))
    within(1, lambda: ask(second, photo(RED)).json()["model"] == job["result"]["model"])


def test_a_folder_that_cannot_be_loaded_leaves_the_old_version_answering(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = ServedModel(model, FakeClassifier.load)  # type: ignore[arg-type]
    old, whole = served.current, (model / model_folder.FILE).read_bytes()
    (model / model_folder.FILE).write_bytes(b"half of a fi")
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            served.look()
    assert served.current is old
    assert len(caplog.records) == 1  # a folder that stays broken is not logged at each look
    (model / model_folder.FILE).write_bytes(whole)
    new = learn_elsewhere(model, "green", GREEN)
    served._retry = 0.0
    served.look()
    assert served.current.model_id == new


def test_the_folder_is_followed_after_any_error(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as memory that is short for a moment; the old version answers meanwhile."""
    troubles: list[Exception] = [RuntimeError("CUDA out of memory"), MemoryError()]

    def load(folder: Path) -> FakeClassifier:
        if served is not None and troubles:
            raise troubles.pop()
        return FakeClassifier.load(folder)

    monkeypatch.setattr(served_model, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(served_model, "_RETRY_SECONDS", 0.05)
    served: ServedModel | None = None
    served = ServedModel(model, load)  # type: ignore[arg-type]
    served.start()
    with caplog.at_level(logging.WARNING):
        new = learn_elsewhere(model, "green", GREEN)
        within(5, lambda: served.current.model_id == new)
    served.close()
    assert [("MemoryError" in r.getMessage(), bool(r.exc_info)) for r in caplog.records] == [
        (True, True),
        (False, True),
    ]


def test_the_version_that_a_job_has_saved_is_not_loaded_again(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = ServedModel(model, FakeClassifier.load)  # type: ignore[arg-type]
    learn_elsewhere(model, "green", GREEN)
    saved = served.load()
    served.answer_with(saved)
    served.look()
    assert served.current is saved


def test_a_job_waits_while_another_program_changes_the_model(
    client: TestClient, model: Path
) -> None:
    with FileLock(model / model_folder.LOCK):
        id = teach(client, "green", photo(GREEN)).json()["id"]
        phase = "waiting for another program"
        within(5, lambda: client.get(f"/v1/jobs/{id}").json()["progress"]["phase"] == phase)
        waiting = client.get(f"/v1/jobs/{id}").json()
        assert waiting["state"] == "running"
        assert labels(ask(client, photo(RED))) == ["red"]
    assert ended(client, id)["state"] == "done"


def test_a_job_that_waits_for_another_program_can_be_cancelled(
    client: TestClient, model: Path
) -> None:
    with FileLock(model / model_folder.LOCK):
        id = teach(client, "green", photo(GREEN)).json()["id"]
        client.delete(f"/v1/jobs/{id}")
        assert ended(client, id)["state"] == "cancelled"


@pytest.mark.parametrize("by", ["query", "header"])
def test_a_change_meant_for_another_version_is_refused(client: TestClient, by: str) -> None:
    shown = client.get("/v1/model")
    version = shown.json()["model"]
    assert shown.headers["etag"] == f'"{version}"'

    def naming(version: str) -> dict[str, dict[str, str]]:
        given = {"params": {"model": version}}
        return given if by == "query" else {"headers": {"If-Match": f'"{version}"'}}

    def learn(label: str, version: str) -> object:
        files = [("images", ("a.png", photo(GREEN), "image/png"))]
        return client.post("/v1/learn", files=files, data={"label": label}, **naming(version))

    assert finished(client, learn("green", version))["state"] == "done"
    before = client.get("/v1/model").json()
    error(learn("grey", version), 409, "stale")
    refused = error(client.post("/v1/undo", **naming(version)), 409, "stale")
    assert version in refused["message"]
    assert before["model"] in refused["message"]
    change = {"label": "red", "new": "rose"}
    error(client.post("/v1/rename", json=change, **naming(version)), 409, "stale")
    assert client.get("/v1/model").json() == before
    undone = finished(client, client.post("/v1/undo", **naming(before["model"])))
    assert undone["result"] == {"model": version}


def test_a_version_that_is_outdated_when_the_job_begins_fails_it(client: TestClient) -> None:
    """Both were sent for the same version: the second must not undo the first."""
    version = client.get("/v1/model").json()["model"]
    FakeClassifier.learning.close()
    first = teach(client, "grey", photo(GREY)).json()["id"]
    assert FakeClassifier.learning.reached.wait(10)
    second = client.post("/v1/undo", params={"model": version})
    FakeClassifier.learning.open()
    assert ended(client, first)["state"] == "done"
    job = finished(client, second)
    assert (job["state"], job["error"]["code"]) == ("failed", "stale")
    assert labels(ask(client, photo(GREY))) == ["grey"]


def test_looking_often_enough_for_a_second() -> None:
    assert served_model.LOOK_SECONDS <= 0.5
