"""`cprompt undo`: a model as it was before its last batch."""

from __future__ import annotations

from pathlib import Path

from cprompt.cli.arguments import MODEL
from cprompt.cli.output import say


def undo(model: Path = MODEL) -> None:
    """Go back to before the last batch; this also repairs a model whose last version is damaged."""
    from cprompt.classifier import model_folder

    with model_folder.writing(model):
        model_folder.undo(model)
    about = model_folder.read_about(model)
    say(
        f"{model} is back to batch {about['history'][-1]['number']}, "
        f"{len(about['classes'])} classes"
    )
