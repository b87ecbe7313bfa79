"""Jobs as they are sent."""

from __future__ import annotations

import json

from cprompt.serve.job import Job, Progress
from cprompt.serve.schemas import job_info
from cprompt.serve.uploads import Upload


def test_a_job_is_sent_with_its_progress_and_what_was_skipped() -> None:
    job = Job("learn", Upload([], ["a/notes.txt"]), None)
    job.progress = Progress("learning", 3, 20)
    sent = job_info(job).model_dump()
    assert sent["progress"] == {"phase": "learning", "done": 3, "total": 20}
    assert sent["skipped"] == ["a/notes.txt"]
    assert (sent["id"], sent["state"]) == (job.id, "queued")
    assert not {"folder", "upload", "stop"} & sent.keys()


def test_a_job_with_half_a_character_can_be_sent() -> None:
    """A service of an earlier version may have queued it."""
    half = "a\ud800b"
    job = Job("merge", Upload([], [half]), None, {"label": half, "into": "\U0001f600"})
    job.photos, job.warnings = {half: 2}, [half]
    job.error, job.result = {"message": half}, {"batch": {"photos": {half: [1, 0.5, None]}}}
    sent = json.loads(job_info(job).model_dump_json())
    whole = "a\ufffdb"
    assert sent["arguments"] == {"label": whole, "into": "\U0001f600"}
    assert (sent["skipped"], sent["photos"], sent["warnings"]) == ([whole], {whole: 2}, [whole])
    assert sent["error"] == {"message": whole}
    assert sent["result"] == {"batch": {"photos": {whole: [1, 0.5, None]}}}
