"""`cprompt learn`: another batch of photos for a model, new or old."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from cprompt.cli.arguments import (
    DEVICE,
    GPUS,
    ON,
    PLUGINS,
    SETTINGS,
    SOME_UNREAD,
    parse_settings,
)
from cprompt.cli.output import say
from cprompt.errors import ConfigError, counted, plural, some

if TYPE_CHECKING:
    from cprompt.classifier.classifier import ContinualClassifier

_FEW_CLASSES = 2  # with so few there is hardly anything to learn from what unknown photos look like


def learn(
    context: typer.Context,
    model: Path = typer.Argument(help="A model folder; made if it does not exist."),
    photos: str = typer.Argument(
        help="A folder with one folder of photos per class; or a list of path and label as .txt, "
        ".csv or .parquet, or .tar files of WebDataset. All of them may be URLs."
    ),
    backbone: str | None = typer.Option(
        None, help="New model: small, base, large or any of `cprompt backbones`."
    ),
    weights: str | None = typer.Option(
        None, help="Local file of weights; named after its model, it needs no --backbone."
    ),
    method: str | None = typer.Option(None, help="New model: see `cprompt list methods`."),
    accept: float | None = typer.Option(
        None, help="New model: share of known photos that must not be called unknown."
    ),
    hold_out: float | None = typer.Option(
        None, help="New model of a trained method: share of each batch that calibrates instead."
    ),
    seed: int | None = typer.Option(None, help="New model: seed of everything random."),
    on: str | None = ON,
    shards: int | None = typer.Option(
        None, min=1, help="With --on: parts that the photos are cut into.", show_default="by size"
    ),
    gpus_per_worker: float = GPUS,
    strict: bool = typer.Option(
        False, "--strict", help="Learn nothing if one photo cannot be read."
    ),
    device: str = DEVICE,
    settings: list[str] = SETTINGS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Learn a batch of photos: new classes, more photos of old ones, or both.

    The photos are not needed afterwards. Until the whole batch is learnt, the
    model stays as it was, whatever happens. A new model takes settings, such as
    --method.length 10 or --training.epochs 20, and keeps them for all batches.
    Photos that cannot be read are left out and listed at the end, and the status
    is then 3.
    """
    if on is None and (shards or gpus_per_worker):
        raise ConfigError("--shards and --gpus-per-worker are for --on", hint="add --on")
    method_settings, training = _by_part(parse_settings([*settings, *context.args]))

    from cprompt.classifier import model_folder
    from cprompt.classifier.classifier import ContinualClassifier
    from cprompt.classifier.readable import learn_readable
    from cprompt.cli.progress import ProgressBars

    asked: dict[str, Any] = {
        "backbone": backbone,
        "method": method,
        "accept": accept,
        "hold_out": hold_out,
        "seed": seed,
    }
    chosen = {name: value for name, value in asked.items() if value is not None}
    console = Console()
    with model_folder.writing(model):
        if model_folder.exists(model):
            parts = (("method", method_settings), ("training", training))
            fixed = [*chosen, *(f"{part}.{name}" for part, names in parts for name in names)]
            if fixed:
                raise ConfigError(
                    f"the model keeps the settings of its first batch, so {some(fixed)} cannot be "
                    "chosen",
                    file=model,
                    hint="leave that out, or learn into another folder",
                )
            classifier = ContinualClassifier.load(model, device=device, weights=weights)
        else:
            model_folder.check_new(model)
            classifier = ContinualClassifier(
                **chosen,
                weights=weights,
                settings=method_settings,
                training=training,
                device=device,
            )
        if_stopped = "stopped; the model is as it was before this batch"
        with ProgressBars(console=console, lines=False, if_stopped=if_stopped) as bars:
            if on is None:
                unread = learn_readable(classifier, photos, strict=strict, observer=bars)
            else:
                from cprompt.cluster.learning import CountOnRay
                from cprompt.cluster.tasks import Work

                work = Work(gpus=gpus_per_worker, plugins=tuple(plugins))
                count = CountOnRay(on, shards, work)
                unread = classifier.learn_counted(photos, count, strict=strict, observer=bars)
        classifier.save(model)
    batch = classifier.history_[-1]
    say(
        f"batch {batch.number}: learnt {counted(sum(batch.photos.values()), 'photo')} of "
        f"{counted(len(batch.photos), 'class')} in {batch.seconds:.0f} s"
        f"{_listed('new', batch.new)}{_listed('again', batch.returning)}",
        f"{model}: {counted(len(classifier.classes_), 'class')}, "
        f"{model_folder.size(model) / 2**20:.1f} MiB; {_unknown(classifier)}",
        console=console,
    )
    if unread:
        say(
            f"{len(unread):,} more {plural(len(unread), 'photo')} cannot be read and "
            f"{plural(len(unread), 'was', 'were')} left out:",
            *(f"    {error}" for error in unread),
            console=Console(stderr=True),
        )
        raise typer.Exit(SOME_UNREAD)


def _by_part(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the method, and settings of training, by their names within that part."""
    by_part: dict[str, dict[str, Any]] = {"method": {}, "training": {}}
    for name, value in settings.items():
        part, _, setting = name.partition(".")
        if part not in by_part:
            raise ConfigError(
                f"learn has no setting {name!r}", hint="it takes method.NAME and training.NAME"
            )
        by_part[part][setting] = value
    return by_part["method"], by_part["training"]


def _unknown(classifier: ContinualClassifier) -> str:
    """Which photos are called unknown, or why none is."""
    if not classifier.threshold_:
        if classifier.method_settings().get("keep") == 0:
            return "no photo is called unknown, because no features are kept to tell by"
        if classifier.method_settings().get("head") == "single":
            return (
                "no photo is called unknown, because a single head leaves no photo out to tell by"
            )
        if classifier.method_.left_out() is None and classifier.hold_out == 0:
            return "no photo is called unknown, because none is held out to tell by"
        return "no photo is called unknown yet, because too few photos are there to tell"
    refused = f"about {100 * (1 - classifier.accept):.0f} % of known photos are called unknown"
    classes = len(classifier.classes_)
    if classes > _FEW_CLASSES:
        return refused
    return (
        f"{refused}, but with {counted(classes, 'class')} photos of anything else are "
        "hardly recognised as unknown"
    )


def _listed(what: str, names: list[str]) -> str:
    return f"; {what}: {some(names)}" if names else ""
