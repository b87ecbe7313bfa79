"""`cprompt merge`: two models become one that knows what both know."""

from __future__ import annotations

from pathlib import Path

import typer

from cprompt.cli.arguments import MOVED_WEIGHTS, PLUGINS
from cprompt.cli.output import say
from cprompt.errors import counted


def merge(
    first: Path = typer.Argument(help="A model folder."),
    second: Path = typer.Argument(help="Another one, on the same backbone."),
    out: Path = typer.Option(..., "--out", help="A new folder for the merged model."),
    weights: str | None = MOVED_WEIGHTS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Make one model out of two, as if it had learnt the photos of both.

    Neither the photos nor the two models are needed afterwards, and no photo is
    exchanged. Classes of the same name become one.
    """
    from cprompt.classifier import model_folder
    from cprompt.classifier.classifier import ContinualClassifier

    with model_folder.writing(out):
        model_folder.check_new(out)
        merged = ContinualClassifier.load(first, weights=weights)
        merged.merge(ContinualClassifier.load(second, weights=weights)).save(out)
    say(
        f"{out}: {counted(len(merged.classes_), 'class')} from {first} and {second}, "
        f"{model_folder.size(out) / 2**20:.1f} MiB"
    )
