"""`cprompt forget`: a class is dropped from a model."""

from __future__ import annotations

from pathlib import Path

import typer

from cprompt.cli.arguments import DEVICE, MODEL, MOVED_WEIGHTS, PLUGINS
from cprompt.cli.output import say


def forget(
    model: Path = MODEL,
    name: str = typer.Argument(help="Name of the class."),
    photos: Path | None = typer.Option(
        None, help="Folder with all photos of the class: then nothing of it is left."
    ),
    weights: str | None = MOVED_WEIGHTS,
    device: str = DEVICE,
    plugins: list[str] = PLUGINS,
) -> None:
    """Drop a class from a model; the other classes stay as they are.

    Without --photos, the part that the class has in the covariance shared by
    all classes stays. `cprompt undo` takes the change back.
    """
    from cprompt.classifier import model_folder
    from cprompt.classifier.classifier import ContinualClassifier

    with model_folder.writing(model):
        classifier = ContinualClassifier.load(model, device=device, weights=weights)
        classifier.forget(name, photos).save(model)
    say(f"{model}: {name} is forgotten, {len(classifier.classes_)} classes stay")
