"""`cprompt undo`: a model as it was before its last change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cprompt.cli.arguments import MODEL
from cprompt.cli.output import say
from cprompt.errors import ModelError, counted, some


def undo(model: Path = MODEL) -> None:
    """Take back the last change of a model: a batch, or a rename, forget or merge.

    One change can be taken back, the last. This also repairs a model whose last
    version is damaged.
    """
    from cprompt.classifier import model_folder

    with model_folder.writing(model):
        try:
            now = model_folder.read_about(model)
        except ModelError:
            now = None
        model_folder.undo(model)  # it refuses what is not damage
    before = model_folder.read_about(model)
    say(
        taken_back(now, before),
        f"{model}: {counted(len(before['classes']), 'class')} from "
        f"{counted(len(before['history']), 'batch', 'batches')}",
    )


def taken_back(now: Mapping[str, Any] | None, before: Mapping[str, Any]) -> str:
    """What going back from `now` to `before` took back; None is a description that was damaged."""
    if now is None:
        return "the damaged last version is gone"
    late = now["history"][len(before["history"]) :]
    if late:
        photos = late[-1]["photos"]
        return (
            f"batch {late[-1]['number']} is taken back: "
            f"{counted(sum(photos.values()), 'photo')} of {some(list(photos))}"
        )
    known, was = ([each["name"] for each in about["classes"]] for about in (now, before))
    again = [name for name in was if name not in known]
    gone = [name for name in known if name not in was]
    if again and gone:
        return f"class {some(gone)} is called {some(again)} again"
    if again:
        return f"class {some(again)} is there again"
    return "the last change is taken back"
