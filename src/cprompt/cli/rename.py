"""`cprompt rename`: a class of a model gets another name, or becomes one with another class."""

from __future__ import annotations

from pathlib import Path

import typer

from cprompt.cli.arguments import MODEL, MOVED_WEIGHTS, PLUGINS
from cprompt.cli.output import say


def rename(
    model: Path = MODEL,
    name: str = typer.Argument(help="Name of the class."),
    new: str = typer.Argument(help="Its new name, which no class has, except with --merge."),
    merge: bool = typer.Option(
        False, "--merge", help="Make it one class with the one that has the new name."
    ),
    weights: str | None = MOVED_WEIGHTS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Call a class of a model by another name; `cprompt undo` takes it back.

    With --merge two classes become one, as if all their photos had been learnt
    under the new name.
    """
    from cprompt.classifier import model_folder
    from cprompt.classifier.classifier import ContinualClassifier

    with model_folder.writing(model):
        classifier = ContinualClassifier.load(model, weights=weights)
        (classifier.merge_classes if merge else classifier.rename)(name, new)
        classifier.save(model)
    say(f"{model}: {name} is called {new} now{', as the class of that name is' if merge else ''}")
