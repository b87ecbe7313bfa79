"""`cprompt forget`: a class is dropped from a model."""

from __future__ import annotations

from pathlib import Path

import typer

from cprompt.cli.arguments import DEVICE, MODEL, MOVED_WEIGHTS, PLUGINS
from cprompt.cli.output import say
from cprompt.errors import counted


def forget(
    model: Path = MODEL,
    name: str = typer.Argument(help="Name of the class."),
    photos: list[str] = typer.Option(
        [],
        metavar="FOLDER",
        help="Folder with all photos of the class, or the folder around it: then nothing of the "
        "class is left; several if it was learnt from several.",
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
        classifier.forget(name, photos or None).save(model)
    stay = counted(len(classifier.classes_), "class stays", "classes stay")
    say(f"{model}: {name} is forgotten, {stay}")
