"""Every change leaves a line, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path

from cprompt.serve.audit import FILE, note_change
from cprompt.serve.job import Job
from cprompt.serve.uploads import Upload
from tests.serve.common import GREEN, RED, TOKEN, ask, finished, photo, send_zip, teach, zipped
from tests.serve.conftest import Serve


def test_every_change_leaves_a_line_with_its_role(serve: Serve, uploads: Path) -> None:
    client = serve(token=TOKEN)
    client.headers["Authorization"] = f"Bearer {TOKEN}"
    start = client.get("/v1/model").json()["model"]
    ask(client, photo(RED))
    finished(client, send_zip(client, zipped({"red/a.png": photo(RED)}), "/v1/evaluate"))
    finished(client, client.post("/v1/forget", json={"label": "nothing"}))
    assert not (uploads.parent / FILE).exists()
    learnt = finished(client, teach(client, "green", photo(GREEN), photo(GREEN, 1)))
    finished(client, client.post("/v1/rename", json={"label": "green", "new": "leaf"}))
    finished(client, client.post("/v1/undo"))
    lines = [json.loads(line) for line in (uploads.parent / FILE).read_text("utf-8").splitlines()]
    assert [line["what"] for line in lines] == ["learn", "rename", "undo"]
    assert {line["role"] for line in lines} == {"teach"}
    assert lines[0]["photos"] == {"green": 2}
    assert (lines[0]["before"], lines[0]["after"]) == (start, learnt["result"]["model"])
    assert (lines[1]["label"], lines[1]["new"]) == ("green", "leaf")
    assert lines[2]["after"] == lines[0]["after"] == lines[1]["before"]
    assert lines[0]["job"] == learnt["id"]
    assert all(line["when"].endswith("+00:00") for line in lines)


def changed() -> Job:
    """A job that has changed the model."""
    job = Job("undo", Upload([], []), None, state="done")
    job.promise = {"replaces": "a", "result": {"model": "b"}}
    return job


def test_a_line_that_was_cut_spoils_no_other(tmp_path: Path) -> None:
    job = changed()
    note_change(tmp_path, job)
    with (tmp_path / FILE).open("a", encoding="utf-8") as file:
        file.write('{"when": "2026-01-01T00:0')  # a kill, or a full disk
    note_change(tmp_path, job)
    first, cut, last = (tmp_path / FILE).read_text("utf-8").splitlines()
    assert cut == '{"when": "2026-01-01T00:0'
    assert json.loads(first)["job"] == json.loads(last)["job"] == job.id


def test_a_full_disk_does_not_break_the_job(tmp_path: Path) -> None:
    note_change(tmp_path / "nowhere", changed())
    assert not (tmp_path / "nowhere").exists()
