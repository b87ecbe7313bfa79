"""Jobs as they are sent."""

from __future__ import annotations

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
