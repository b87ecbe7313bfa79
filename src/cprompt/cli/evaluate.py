"""`cprompt evaluate`: how right a model is on labelled photos."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cprompt.classifier.classifier import ContinualClassifier
from cprompt.classifier.evaluation import ClassResult, Evaluation
from cprompt.cli import app
from cprompt.cli.progress import ProgressBars

SHOWN = 10


@app.command()
def evaluate(
    model: Path = typer.Argument(help="A model folder, made by `cprompt learn`."),
    photos: Path = typer.Argument(help="A folder with a folder of photos for each class."),
    as_json: bool = typer.Option(False, "--json", help="Everything as JSON on standard output."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    weights: str | None = typer.Option(
        None, help="The backbone's weights, where the model was learnt on a file that has moved."
    ),
) -> None:
    """Accuracy by class and by batch, what is taken for what, and whether probabilities hold."""
    classifier = ContinualClassifier.load(model, device=device, weights=weights)
    console = Console()
    with ProgressBars(console=Console(stderr=True), lines=False) as bars:
        found = classifier.evaluate(photos, observer=bars)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
        return
    _print(console, found)


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
    for line in _mistakes(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if found.accuracy is None:
        console.print("no photo of a class that was learnt")
    else:
        console.print(
            f"accuracy {100 * found.accuracy:.1f} % of {found.photos} photos; "
            f"{_percent(found.accuracy_if_answered)} of those answered, "
            f"{_percent(found.unknown_share)} called unknown; "
            f"calibration error (ECE) {100 * found.ece:.1f} %",
            highlight=False,
            soft_wrap=True,
        )
    if found.unseen.photos:
        console.print(
            f"{found.unseen.photos} photos of classes never learnt, "
            f"{_percent(found.unseen.unknown / found.unseen.photos)} of them called unknown",
            highlight=False,
            soft_wrap=True,
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
    """The most frequent confusions, one a line."""
    pairs = [
        (count, truth, answer)
        for truth, row in zip(found.confusion.truth, found.confusion.counts, strict=True)
        for answer, count in zip(found.confusion.answer, row, strict=True)
        if count and answer != truth
    ]
    pairs.sort(key=lambda each: -each[0])
    return [f"{count} × {truth} taken for {answer}" for count, truth, answer in pairs[:SHOWN]]
