"""`cprompt rename`: a class of a model gets another name."""

from __future__ import annotations

from pathlib import Path

import typer

from cprompt.cli.arguments import MODEL, MOVED_WEIGHTS, PLUGINS
from cprompt.cli.output import say


def rename(
    model: Path = MODEL,
    name: str = typer.Argument(help="Name of the class."),
    new: str = typer.Argument(help="Its new name, which no class has."),
    weights: str | None = MOVED_WEIGHTS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Call a class of a model by another name; `cprompt undo` takes it back."""
    from cprompt.classifier import model_folder
    from cprompt.classifier.classifier import ContinualClassifier

    with model_folder.writing(model):
        classifier = ContinualClassifier.load(model, weights=weights)
        classifier.rename(name, new).save(model)
    say(f"{model}: {name} is called {new} now")
