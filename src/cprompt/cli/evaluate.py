"""`cprompt evaluate`: how often a model is right on labelled photos."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cprompt.cli import answer_files
from cprompt.cli.arguments import DEVICE, MODEL, MOVED_WEIGHTS, PLUGINS
from cprompt.cli.output import say
from cprompt.cli.predict import end_if_unread
from cprompt.errors import DataError, counted
from cprompt.files import check_writable, shown_path, write_bytes, write_json

if TYPE_CHECKING:
    from cprompt.classifier.evaluation import ClassResult, Evaluation, PhotoAnswer

_MISTAKES_SHOWN = 10
_MISTAKES_ON_PAGE = 24


def evaluate(
    model: Path = MODEL,
    photos: Path = typer.Argument(help="A folder with one folder of photos per class."),
    json_to: str | None = typer.Option(
        None,
        "--json",
        metavar="[FILE.json]",
        help="Everything as JSON into that file; without one, on standard output.",
    ),
    csv_to: str | None = typer.Option(
        None,
        "--csv",
        metavar="[FILE.csv]",
        help="The answer to each photo as CSV; without a file, on standard output.",
    ),
    report: Path | None = typer.Option(
        None, metavar="FILE.html", help="One page with figures and the worst mistakes."
    ),
    strict: bool = typer.Option(
        False, "--strict", help="Answer nothing if one photo cannot be read."
    ),
    device: str = DEVICE,
    weights: str | None = MOVED_WEIGHTS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Measure accuracy per class and per batch, confusions, and how honest probabilities are.

    Photos that cannot be read do not count. They are listed at the end, and
    the status is then 3.
    """
    answer_files.check_targets(csv_to, json_to, None)
    if report is not None:
        check_writable(report)

    from cprompt.classifier.classifier import ContinualClassifier
    from cprompt.classifier.photo_sources import labelled
    from cprompt.classifier.readable import evaluate_readable
    from cprompt.cli.progress import ProgressBars

    given, names = labelled(photos)
    files = [Path(str(file)) for file in given]
    errors: dict[int, DataError] = {}
    classifier = ContinualClassifier.load(model, device=device, weights=weights)
    messages = Console(stderr=True)
    with ProgressBars(console=messages, lines=False) as bars:
        if strict:
            found = classifier.evaluate(files, names, observer=bars)
        else:
            found, errors = evaluate_readable(classifier, files, names, bars.decoded)
    answers = iter(found.answers)
    rows = [
        _row(file, name, errors[i] if i in errors else next(answers))
        for i, (file, name) in enumerate(zip(files, names, strict=True))
    ]
    written = answer_files.write_rows(rows, csv_to, None, None)
    unread = [{"image": shown_path(files[i]), "error": e.message} for i, e in errors.items()]
    plain = {**found.to_dict(), "unreadable": unread}
    if json_to == answer_files.STANDARD_OUTPUT:
        print(json.dumps(plain, indent=2, ensure_ascii=False))
    elif json_to is not None:
        write_json(Path(json_to), plain)
        written.append(json_to)
    if report is not None:
        about = (
            f"{classifier.model_id}, asked about the {counted(found.photos, 'photo')} in {photos}."
        )
        readable = [file for i, file in enumerate(files) if i not in errors]
        page = _page(found, readable, photos, f"How accurate is {model.resolve().name}?", about)
        write_bytes(report, page.encode())
        written.append(str(report))
    say(*(f"written: {name}" for name in written), console=messages)
    if answer_files.STANDARD_OUTPUT not in (csv_to, json_to):
        _print(Console(), found)
    end_if_unread(list(errors.values()), len(files), messages)


def _row(file: Path, truth: str, answer: PhotoAnswer | DataError) -> dict[str, Any]:
    """One line of `--csv`."""
    columns = ("label", "best", "probability", "right")
    unread = isinstance(answer, DataError)
    return {
        "image": shown_path(file),
        "truth": truth,
        **{name: None if unread else getattr(answer, name) for name in columns},
        "error": answer.message if isinstance(answer, DataError) else None,
    }


def _page(found: Evaluation, files: Sequence[Path], folder: Path, title: str, about: str) -> str:
    from cprompt.classifier.photos import load_photo
    from cprompt.report import html
    from cprompt.report.evaluation import Mistake, evaluation_page

    named = [i for i, a in enumerate(found.answers) if a.label == a.best and not a.right]
    named.sort(key=lambda i: -found.answers[i].probability)
    mistakes = [
        Mistake(
            address=html.square_thumbnail(load_photo(files[i], str(files[i]))),
            name=shown_path(os.path.relpath(files[i], folder)),
            truth=found.answers[i].truth,
            label=found.answers[i].label,
            probability=found.answers[i].probability,
        )
        for i in named[:_MISTAKES_ON_PAGE]
    ]
    return evaluation_page(found.to_dict(), mistakes, title, f"Model {shown_path(about)}")


def _print(console: Console, found: Evaluation) -> None:
    for title, rows in (
        ("class", found.per_class.items()),
        ("classes of batch", ((str(n), result) for n, result in found.per_batch.items())),
    ):
        table = Table(box=None, pad_edge=False)
        table.add_column(title)
        for column in ("photos", "right %", "without refusals %", "unknown %"):
            table.add_column(column, justify="right")
        for name, result in rows:
            table.add_row(escape(name), *_numbers(result))
        console.print(table)
    say(*_mistakes(found), console=console)
    if found.accuracy is None:
        say("no photo is of a class that was learnt", console=console)
    else:
        photos = found.photos - found.unseen.photos
        say(
            f"accuracy {100 * found.accuracy:.1f} % of {counted(photos, 'photo')}, where "
            f"{_percent(found.unknown_share)} were called unknown and count as wrong",
            f"without refusals {_percent(found.accuracy_forced)}: each photo gets its best name",
            f"of those answered {_percent(found.accuracy_if_answered)}; "
            f"calibration error (ECE) {100 * found.ece:.1f} %",
            console=console,
        )
    if found.unseen.photos:
        say(
            f"{counted(found.unseen.photos, 'photo')} of classes never learnt, "
            f"{_percent(found.unseen.unknown / found.unseen.photos)} of them called unknown",
            console=console,
        )


def _numbers(result: ClassResult) -> list[str]:
    return [
        str(result.photos),
        _percent(result.accuracy, sign=""),
        _percent(result.accuracy_forced, sign=""),
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
