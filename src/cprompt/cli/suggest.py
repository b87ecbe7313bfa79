"""`cprompt suggest`: which photos to label next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cprompt.cli import answer_files
from cprompt.cli.arguments import DEVICE, MODEL, MOVED_WEIGHTS, PLUGINS, SOME_UNREAD
from cprompt.cli.output import print_whole, say
from cprompt.cli.predict import photo_files
from cprompt.errors import counted, plural
from cprompt.files import check_writable, shown_path, write_bytes

if TYPE_CHECKING:
    from cprompt.classifier.suggestions import Suggestion


def suggest(
    model: Path = MODEL,
    images: list[Path] = typer.Argument(help="Photos without labels, or folders of them."),
    count: int = typer.Option(50, min=1, help="Most photos to suggest."),
    csv_to: str | None = typer.Option(
        None,
        "--csv",
        metavar="[FILE.csv]",
        help="CSV into that file; without one, on standard output.",
    ),
    sheet: Path | None = typer.Option(
        None, metavar="FILE.html", help="One page with the photos and their present answers."
    ),
    device: str = DEVICE,
    weights: str | None = MOVED_WEIGHTS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Choose the photos whose labels would help the model most.

    They are photos that the model is unsure of, each in another way; of photos
    that look the same only one is chosen. Label them, then `cprompt learn`.
    Photos that cannot be read are listed at the end, and the status is then 3.
    """
    answer_files.check_targets(csv_to, None, None)
    if sheet is not None:
        check_writable(sheet)

    from cprompt.classifier.classifier import ContinualClassifier
    from cprompt.classifier.suggestions import suggest as suggest_photos
    from cprompt.cli.progress import ProgressBars

    files = [file for given in images for file in photo_files(given)]
    classifier = ContinualClassifier.load(model, device=device, weights=weights)
    messages = Console(stderr=True)
    with ProgressBars(console=messages, lines=False) as bars:
        found = suggest_photos(classifier, files, count, bars.decoded)
    rows = [_row(files[each.index], each) for each in found.chosen]
    written = answer_files.write_rows(rows, csv_to, None, None) if rows else []
    if sheet is not None:
        write_bytes(sheet, _page(files, found.chosen, model).encode())
        written.append(str(sheet))
    if csv_to != answer_files.STANDARD_OUTPUT:
        print_whole(_table(rows), Console())
    alike = (
        f"; {counted(found.repeated, 'looks', 'look')} the same as another and "
        f"{plural(found.repeated, 'was', 'were')} left out"
        if found.repeated
        else ""
    )
    say(
        f"{len(rows)} of {counted(len(files), 'photo')} to label{alike}",
        *(f"written: {name}" for name in written),
        console=messages,
    )
    if found.unreadable:
        say(
            f"{len(found.unreadable)} of {counted(len(files), 'photo')} cannot be read:",
            *(f"    {error}" for error in found.unreadable),
            console=messages,
        )
        raise typer.Exit(SOME_UNREAD)


def _row(file: Path, each: Suggestion) -> dict[str, Any]:
    """One line of `--csv`."""
    return {
        "image": shown_path(file),
        "label": each.label,
        "best": each.best,
        "probability": each.probability,
        "familiarity": each.familiarity,
        "doubt": each.doubt,
    }


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("photo")
    table.add_column("answer now")
    for column in ("%", "doubt"):
        table.add_column(column, justify="right")
    for row in rows:
        answer = f"{row['label']} ({row['best']})" if row["label"] != row["best"] else row["best"]
        table.add_row(
            escape(row["image"]),
            escape(answer),
            f"{100 * row['probability']:.0f}",
            f"{row['doubt']:.2f}",
        )
    return table


def _page(files: Sequence[Path], chosen: Sequence[Suggestion], model: Path) -> str:
    from cprompt.classifier.photos import load_photo
    from cprompt.report import html
    from cprompt.report.sheet import Shelf, Thumbnail, sheet_page

    photos = []
    for each in chosen:
        file = files[each.index]
        lines = [(f"{each.best}, {100 * each.probability:.0f} %?", "")]
        if each.label != each.best:
            lines.append((f"answered {each.label}", "wrong"))
        lines.append((shown_path(file), "soft"))
        photos.append(Thumbnail(html.whole_thumbnail(load_photo(file, str(file))), lines))
    about = (
        f"Chosen by model {shown_path(model.resolve().name)} from "
        f"{counted(len(files), 'photo')}: it is unsure of them, each stands for others, "
        "and no two look the same."
    )
    shelf = Shelf(
        "The most doubtful first",
        "Below each photo is the most probable name, with its probability.",
        photos,
    )
    return sheet_page("Photos to label next", about, [shelf])
