"""A line for every change of the model: when, by which role, and what."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from cprompt.files import append_line
from cprompt.serve.job import Job, now

FILE = "changes.jsonl"
"""Name of the file in the service's folder beside the model."""

_log = logging.getLogger(__name__)


def note_change(folder: Path, job: Job) -> None:
    """Add a line about a job that changed the model; others add none.

    After a kill the same job may be noted twice, but none is missing.
    """
    if job.state != "done" or job.promise is None:
        return
    line = {
        "when": now(),
        "role": job.role,
        "what": job.kind,
        "photos": job.photos,
        **job.arguments,
        "before": job.promise["replaces"],
        "after": job.promise["result"]["model"],
        "job": job.id,
    }
    try:
        append_line(folder / FILE, json.dumps(line, ensure_ascii=False))
    except OSError as error:
        _log.error("the change by job %s cannot be noted: %s", job.id, error)
