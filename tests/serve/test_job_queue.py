"""Jobs: one at a time, bounded, cancellable, and nothing of an upload left behind."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cprompt.classifier import model_folder
from cprompt.serve import job_queue
from cprompt.serve.errors import RequestError
from cprompt.serve.job import Job
from cprompt.serve.job_queue import JobQueue
from cprompt.serve.job_store import JobStore
from cprompt.serve.workspace import Workspace
from tests.serve.common import (
    GREEN,
    GREY,
    RED,
    ask,
    ended,
    error,
    files_below,
    finished,
    labels,
    photo,
    photos_below,
    send_zip,
    teach,
    zipped,
)
from tests.serve.conftest import Serve
from tests.serve.fake import FakeClassifier, Gate


def nothing(job: Job) -> None:
    return None


def hold_a_job(client: TestClient) -> str:
    """The id of a job that has begun to learn and waits for the gate."""
    FakeClassifier.learning.close()
    id: str = teach(client, "held", photo(GREEN)).json()["id"]
    assert FakeClassifier.learning.reached.wait(10)
    return id


def test_one_job_at_a_time_and_a_full_queue_is_503(serve: Serve) -> None:
    client = serve(limits={"max_jobs": 2})
    first = hold_a_job(client)
    second = teach(client, "grey", photo(GREY)).json()
    assert client.get(f"/v1/jobs/{second['id']}").json()["state"] == "queued"
    third = teach(client, "red", photo(RED))
    error(third, 503, "busy")
    assert int(third.headers["retry-after"]) >= 1
    error(client.post("/v1/undo"), 503, "busy")
    FakeClassifier.learning.open()
    assert ended(client, first)["state"] == "done"
    assert ended(client, second["id"])["state"] == "done"
    assert client.get("/v1/model").json()["history"][-1]["new"] == ["grey"]
    assert finished(client, teach(client, "red", photo(RED)))["state"] == "done"


def test_a_queued_job_can_be_cancelled(client: TestClient, uploads: Path) -> None:
    first = hold_a_job(client)
    second = teach(client, "grey", photo(GREY)).json()["id"]
    assert len(photos_below(uploads)) == 2
    cancelled = client.delete(f"/v1/jobs/{second}")
    assert cancelled.status_code == 202
    assert ended(client, second)["state"] == "cancelled"
    assert len(photos_below(uploads)) == 1
    FakeClassifier.learning.open()
    assert ended(client, first)["state"] == "done"
    assert [c["label"] for c in client.get("/v1/model").json()["classes"]] == [
        "red",
        "blue",
        "held",
    ]
    error(client.delete(f"/v1/jobs/{second}"), 409, "job_ended")
    error(client.delete(f"/v1/jobs/{first}"), 409, "job_ended")


def test_a_running_job_stops_at_its_next_step_and_changes_nothing(
    client: TestClient, model: Path, uploads: Path
) -> None:
    before = model_folder.read_about(model)
    id = hold_a_job(client)
    assert client.delete(f"/v1/jobs/{id}").json()["state"] == "running"
    FakeClassifier.learning.open()
    assert ended(client, id)["state"] == "cancelled"
    assert model_folder.read_about(model) == before
    assert labels(ask(client, photo(GREEN))) == ["unknown"]
    assert photos_below(uploads) == []


def test_a_failed_job_names_the_senders_file_and_changes_nothing(
    client: TestClient, model: Path, uploads: Path
) -> None:
    before = model_folder.read_about(model)
    cut = photo(GREEN)[:-300]  # its header is whole, so only decoding finds out
    job = finished(
        client, send_zip(client, zipped({"green/a.png": photo(GREEN), "green/b.png": cut}))
    )
    assert job["state"] == "failed"
    assert job["error"]["code"] == "data"
    assert job["error"]["file"] == "green/b.png"
    assert job["error"]["message"].startswith("green/b.png: is damaged")
    assert str(uploads) not in str(job)
    assert model_folder.read_about(model) == before
    assert labels(ask(client, photo(RED))) == ["red"]
    assert photos_below(uploads) == []


def test_a_defect_in_a_job_is_logged_and_not_told(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: FakeClassifier, path: Path) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(FakeClassifier, "save", broken)
    with caplog.at_level(logging.ERROR):
        job = finished(client, teach(client, "green", photo(GREEN)))
    assert job["state"] == "failed"
    assert job["error"]["code"] == "internal"
    assert "ZeroDivisionError" in job["error"]["message"]
    assert "a secret" not in str(job)
    assert "a secret" in caplog.text
    assert labels(ask(client, photo(GREEN))) == ["unknown"]


def test_a_job_without_memory_says_so(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(self: FakeClassifier, *args: object, **kwargs: object) -> None:
        raise MemoryError

    monkeypatch.setattr(FakeClassifier, "learn", hungry)
    job = finished(client, teach(client, "green", photo(GREEN)))
    assert (job["state"], job["error"]["code"]) == ("failed", "memory")


def test_an_unknown_job_is_404(client: TestClient) -> None:
    error(client.get("/v1/jobs/0123"), 404, "no_such_job")
    error(client.delete("/v1/jobs/0123"), 404, "no_such_job")


def test_uploads_are_private_and_gone_when_the_job_is_done(
    client: TestClient, uploads: Path
) -> None:
    id = hold_a_job(client)
    assert uploads.stat().st_mode & 0o077 == 0
    assert uploads.parent.stat().st_mode & 0o077 == 0
    assert len(photos_below(uploads)) == 1
    FakeClassifier.learning.open()
    ended(client, id)
    assert photos_below(uploads) == []
    error(teach(client, "green", b"no image"), 422, "not_an_image")
    assert files_below(uploads) == []


def test_what_a_stopped_service_leaves_the_next_one_finishes_under_the_same_ids(
    serve: Serve, uploads: Path
) -> None:
    client = serve()
    done = finished(client, teach(client, "red", photo(RED)))
    first = hold_a_job(client)
    second = teach(client, "grey", photo(GREY)).json()["id"]
    third = client.post("/v1/rename", json={"label": "grey", "new": "silver"}).json()["id"]
    with ThreadPoolExecutor(1) as thread:
        stopping = thread.submit(client.__exit__, None, None, None)
        time.sleep(0.2)
        FakeClassifier.learning.open()
        stopping.result(20)
    assert len(photos_below(uploads)) == 2
    again = serve()
    assert again.get(f"/v1/jobs/{done['id']}").json() == done
    for id in (first, second, third):
        assert ended(again, id)["state"] == "done"
    known = [each["label"] for each in again.get("/v1/model").json()["classes"]]
    assert known == ["red", "blue", "held", "silver"]
    assert [job["id"] for job in again.get("/v1/jobs").json()] == [done["id"], first, second, third]
    assert files_below(uploads) == []


def as_if_killed(client: TestClient) -> None:
    """Nothing of the service's own is left but what is on the disk."""
    queue = client.app.state.service.jobs  # type: ignore[attr-defined]
    queue._workspace._lock.release()
    queue._closing.set()


@pytest.mark.parametrize("change", ["learn", "rename", "undo"])
def test_a_job_that_was_saved_but_not_marked_as_done_is_not_done_twice(
    serve: Serve, model: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    client = serve()
    finished(client, teach(client, "green", photo(GREEN)))
    version = client.get("/v1/model").json()["model"]
    with monkeypatch.context() as patch:
        reached = threading.Event()
        patch.setattr(JobQueue, "_end", lambda queue, job, state: reached.set())
        if change == "learn":
            id = teach(client, "grey", photo(GREY), path=f"/v1/learn?model={version}").json()["id"]
        elif change == "rename":
            id = client.post("/v1/rename", json={"label": "red", "new": "rose"}).json()["id"]
        else:
            id = client.post("/v1/undo").json()["id"]
        assert reached.wait(10)
        as_if_killed(client)
    after = model_folder.read_about(model)
    again = serve()
    job = ended(again, id)
    assert (job["state"], job["error"]) == ("done", None)
    assert job["result"]["model"] == after["model"]
    assert model_folder.read_about(model) == after


def test_a_job_that_was_not_saved_is_done_again(
    serve: Serve, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve()
    reached = threading.Event()

    def killed(self: FakeClassifier, path: Path) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(FakeClassifier, "save", killed)
        patch.setattr(JobQueue, "_end", lambda queue, job, state: reached.set())
        id = teach(client, "grey", photo(GREY)).json()["id"]
        assert reached.wait(10)
        as_if_killed(client)
    again = serve()
    assert ended(again, id)["state"] == "done"
    assert [batch["new"] for batch in model_folder.read_about(model)["history"]][1:] == [["grey"]]


def test_a_job_that_was_cancelled_before_a_kill_is_not_begun_again(
    serve: Serve, model: Path
) -> None:
    client = serve()
    before = model_folder.read_about(model)
    id = hold_a_job(client)
    client.delete(f"/v1/jobs/{id}")
    as_if_killed(client)
    again = serve()
    FakeClassifier.learning.open()
    assert ended(again, id)["state"] == "cancelled"
    assert model_folder.read_about(model) == before


def test_a_job_whose_photos_are_being_removed_can_no_longer_be_cancelled(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing thousands of photos takes seconds, in which the job has ended on disk already."""
    removal = Gate()

    def slow(path: Path, **options: object) -> None:
        removal.pass_through()

    client = serve()
    removal.close()
    with monkeypatch.context() as patch:
        patch.setattr(job_queue.shutil, "rmtree", slow)
        id = teach(client, "red", photo(RED), path="/v1/evaluate").json()["id"]
        assert removal.reached.wait(10)
    refused = client.delete(f"/v1/jobs/{id}")
    as_if_killed(client)
    assert ended(serve(), id)["state"] == "done"
    removal.open()
    error(refused, 409, "job_ended")


def test_a_job_that_kills_its_service_each_time_is_given_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "MOST_STARTS", 1)
    client = serve()
    id = hold_a_job(client)
    as_if_killed(client)
    again = serve()
    job = ended(again, id)
    FakeClassifier.learning.open()
    assert (job["state"], job["error"]["code"]) == ("failed", "killed")


def test_a_job_whose_photos_are_gone_is_reported(serve: Serve, uploads: Path) -> None:
    client = serve()
    id = hold_a_job(client)
    as_if_killed(client)
    for name in photos_below(uploads):
        (uploads / name).unlink()
    again = serve()
    job = ended(again, id)
    FakeClassifier.learning.open()
    assert (job["state"], job["error"]["code"]) == ("failed", "uploads_lost")


def test_a_living_services_jobs_are_shown_but_left_to_it(serve: Serve) -> None:
    first, second = serve(), serve()
    id = hold_a_job(first)
    assert second.get(f"/v1/jobs/{id}").json()["state"] == "running"
    error(second.delete(f"/v1/jobs/{id}"), 409, "not_here")
    third = serve()
    FakeClassifier.learning.open()
    assert ended(first, id)["state"] == "done"
    assert third.get(f"/v1/jobs/{id}").json()["state"] == "done"


def test_only_the_last_finished_jobs_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "KEPT", 2)
    queue = JobQueue(Workspace(tmp_path / "state"), 1, nothing)
    queue.start()
    ids = []
    for _ in range(5):
        while True:
            try:
                with queue.slot() as slot:
                    ids.append(queue.add(slot, "undo").id)
                break
            except RequestError:
                continue
    queue._thread.shutdown(wait=True)
    assert [job.id for job in queue.all()] == ids[-3:]
    with pytest.raises(RequestError):
        queue.get(ids[0])
    queue.close()


@pytest.mark.parametrize(
    "trouble",
    [sqlite3.OperationalError("database is locked"), RequestError(507, "disk_full", "no room")],
)
def test_a_request_does_not_fail_because_old_jobs_cannot_be_dropped(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    def failing(store: JobStore, kept: int) -> None:
        raise trouble

    with monkeypatch.context() as patch:
        patch.setattr(JobStore, "drop_old", failing)
        answer = client.post("/v1/forget", json={"label": "red"})
    assert finished(client, answer)["state"] == "done"


def test_a_job_that_comes_while_the_service_stops_is_left_to_the_next(tmp_path: Path) -> None:
    """It is on disk: an error would say that it is not done, and then it is."""
    queue = JobQueue(Workspace(tmp_path / "state"), 1, nothing)
    queue.start()
    queue._thread.shutdown()
    with queue.slot() as slot:
        id = queue.add(slot, "undo").id
    assert queue.get(id).state == "queued"
    queue.close()
    done: list[str] = []
    following = JobQueue(Workspace(tmp_path / "state"), 1, lambda job: done.append(job.id))
    following.start()
    following._thread.shutdown(wait=True)
    assert (done, following.get(id).state) == ([id], "done")
    following.close()


def test_a_slot_that_is_left_without_a_job_is_free_again(tmp_path: Path) -> None:
    queue = JobQueue(Workspace(tmp_path / "state"), 1, nothing)
    queue.start()

    def refuse() -> None:
        with queue.slot() as slot:
            (slot.make_folder() / "photo").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        refuse()
    assert queue.unfinished == 0
    assert photos_below(tmp_path / "state" / "uploads") == []
    with queue.slot():
        assert queue.unfinished == 1
    queue.close()
