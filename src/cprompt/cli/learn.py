"""`cprompt learn`: another batch of photos for a model, new or old."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from cprompt.classifier import model_folder
from cprompt.classifier.classifier import ContinualClassifier
from cprompt.cli import app
from cprompt.cli.arguments import TakesSettings, parse_settings
from cprompt.cli.progress import ProgressBars
from cprompt.errors import ConfigError, some

STOPPED = "stopped; the model is as it was before this batch"


@app.command(
    cls=TakesSettings,
    epilog="For a new model, settings by name: --method.length 10, --training.epochs 20. A model "
    "that has learnt keeps those it began with.",
)
def learn(
    context: typer.Context,
    model: Path = typer.Argument(help="A model folder; made if it does not exist."),
    photos: Path = typer.Argument(help="A folder with a folder of photos for each class."),
    backbone: str | None = typer.Option(None, help="New model: see `cprompt list backbones`."),
    weights: str | None = typer.Option(None, help="Local file with the backbone's weights."),
    method: str | None = typer.Option(None, help="New model: see `cprompt list methods`."),
    accept: float | None = typer.Option(
        None, help="New model: share of known photos that must not be called unknown."
    ),
    hold_out: float | None = typer.Option(
        None, help="New model: share of each batch that calibrates instead of training."
    ),
    seed: int | None = typer.Option(None, help="New model: of everything random."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
) -> None:
    """Learn a batch of photos: new classes, more photos of old ones, or both.

    The photos are not needed afterwards. Until all of the batch is learnt the model stays as it
    was, whatever happens.
    """
    asked: dict[str, Any] = {
        "backbone": backbone,
        "method": method,
        "accept": accept,
        "hold_out": hold_out,
        "seed": seed,
    }
    chosen = {name: value for name, value in asked.items() if value is not None}
    settings, training = _parts(context.args)
    console = Console()
    with model_folder.writing(model):
        if model_folder.exists(model):
            parts = (("method", settings), ("training", training))
            fixed = [*chosen, *(f"{part}.{name}" for part, names in parts for name in names)]
            if fixed:
                raise ConfigError(
                    f"{model} has learnt already and keeps its settings; leave out {some(fixed)}, "
                    "or learn into another folder"
                )
            classifier = ContinualClassifier.load(model, device=device, weights=weights)
        else:
            classifier = ContinualClassifier(
                **chosen, weights=weights, settings=settings, training=training, device=device
            )
        with ProgressBars(console=console, lines=False, if_stopped=STOPPED) as bars:
            classifier.learn(photos, observer=bars)
        classifier.save(model)
    batch = classifier.history_[-1]
    console.print(
        f"batch {batch.number}: learnt {sum(batch.photos.values())} photos of "
        f"{_count(len(batch.photos), 'class', 'classes')} in {batch.seconds:.0f} s"
        f"{_listed('new', batch.new)}{_listed('again', batch.returning)}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    unsure = (
        f"a photo whose best answer is under {100 * batch.threshold:.0f} % is called unknown"
        if batch.threshold
        else "no photo is called unknown yet, for too few were held out to tell"
    )
    console.print(
        f"{model}: {_count(len(classifier.classes_), 'class', 'classes')}, "
        f"{model_folder.size(model) / 2**20:.1f} MiB; {unsure}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _parts(arguments: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the method and of training."""
    parts: dict[str, dict[str, Any]] = {"method": {}, "training": {}}
    for name, value in parse_settings(arguments).items():
        part, _, setting = name.partition(".")
        if part not in parts:
            raise ConfigError(f"no setting {name!r} here; there are method.NAME and training.NAME")
        parts[part][setting] = value
    return parts["method"], parts["training"]


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _listed(what: str, names: list[str]) -> str:
    return f"; {what}: {some(names)}" if names else ""
