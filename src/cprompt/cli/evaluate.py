"""`cprompt evaluate`: how often a model is right on labelled photos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cprompt.cli.arguments import DEVICE, MODEL, MOVED_WEIGHTS, PLUGINS
from cprompt.cli.output import say

if TYPE_CHECKING:
    from cprompt.classifier.evaluation import ClassResult, Evaluation

_MISTAKES_SHOWN = 10


def evaluate(
    model: Path = MODEL,
    photos: Path = typer.Argument(help="A folder with one folder of photos per class."),
    as_json: bool = typer.Option(False, "--json", help="Everything as JSON on standard output."),
    device: str = DEVICE,
    weights: str | None = MOVED_WEIGHTS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Measure accuracy per class and per batch, confusions, and how honest probabilities are."""
    from cprompt.classifier.classifier import ContinualClassifier
    from cprompt.cli.progress import ProgressBars

    classifier = ContinualClassifier.load(model, device=device, weights=weights)
    with ProgressBars(console=Console(stderr=True), lines=False) as bars:
        found = classifier.evaluate(photos, observer=bars)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
    else:
        _print(Console(), found)


def _print(console: Console, found: Evaluation) -> None:
    for title, rows in (
        ("class", found.per_class.items()),
        ("classes of batch", ((str(n), result) for n, result in found.per_batch.items())),
    ):
        table = Table(box=None, pad_edge=False)
        table.add_column(title)
        for column in ("photos", "right %", "unknown %"):
            table.add_column(column, justify="right")
        for name, result in rows:
            table.add_row(escape(name), *_numbers(result))
        console.print(table)
    say(*_mistakes(found), console=console)
    if found.accuracy is None:
        say("no photo is of a class that was learnt", console=console)
    else:
        say(
            f"accuracy {100 * found.accuracy:.1f} % of {found.photos} photos; "
            f"{_percent(found.accuracy_if_answered)} of those answered, "
            f"{_percent(found.unknown_share)} called unknown; "
            f"calibration error (ECE) {100 * found.ece:.1f} %",
            console=console,
        )
    if found.unseen.photos:
        say(
            f"{found.unseen.photos} photos of classes never learnt, "
            f"{_percent(found.unseen.unknown / found.unseen.photos)} of them called unknown",
            console=console,
        )


def _numbers(result: ClassResult) -> list[str]:
    return [
        str(result.photos),
        _percent(result.accuracy, sign=""),
        _percent(result.unknown / result.photos if result.photos else None, sign=""),
    ]


def _percent(share: float | None, sign: str = " %") -> str:
    return "-" if share is None else f"{100 * share:.1f}{sign}"


def _mistakes(found: Evaluation) -> list[str]:
    """The most frequent confusions, one per line."""
    pairs = [
        (count, truth, answer)
        for truth, row in zip(found.confusion.truth, found.confusion.counts, strict=True)
        for answer, count in zip(found.confusion.answer, row, strict=True)
        if count and answer != truth
    ]
    pairs.sort(key=lambda each: -each[0])
    shown = pairs[:_MISTAKES_SHOWN]
    return [f"{count} × {truth} taken for {answer}" for count, truth, answer in shown]
