"""Jobs that a killed service was about to save: done already, or to be done again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cprompt.classifier import model_folder
from cprompt.serve.errors import RequestError
from cprompt.serve.job import Job


def done_already(job: Job, folder: Path) -> dict[str, Any] | None:
    """The result of a job whose change is in the folder already; None if it is still to be made.

    A job notes the version that it will replace and the one that it will make before it saves. A
    service that is killed after that has saved or not, and only the folder can tell. Call it with
    the folder's lock held.
    """
    if job.promise is None:
        return None
    replaces, result = job.promise["replaces"], dict(job.promise["result"])
    about = model_folder.read_about(folder)
    if about["model"] == replaces:
        return None
    if about["model"] == result["model"]:
        return result
    if job.kind == "undo":
        raise RequestError(
            409,
            "interrupted",
            "the service was stopped while it undid a change, and the model has changed since; "
            "look at it before you undo again",
        )
    saved = model_folder.previous_id(folder) == result["model"] or _has_batch(about, result)
    return result if saved else None


def _has_batch(about: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """Whether the batch that was learnt is in the model, on which others may have built since."""
    batch = result.get("batch")
    return batch is not None and any(
        (known["before"], known["when"], known["seconds"])
        == (batch["before"], batch["when"], batch["seconds"])
        for known in about["history"]
    )
