"""`cprompt predict`: what is on each photo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cprompt.cli import answer_files
from cprompt.cli.arguments import DEVICE, MODEL, MOVED_WEIGHTS, PLUGINS, SOME_UNREAD
from cprompt.cli.output import say
from cprompt.errors import ConfigError, DataError
from cprompt.files import shown_path

if TYPE_CHECKING:
    from cprompt.classifier.explanation import Explanation

Answer: TypeAlias = Union["Explanation", DataError]
"""What is known about a photo, or why it could not be read."""


def predict(
    model: Path = MODEL,
    images: list[Path] = typer.Argument(help="Photos, or folders of photos."),
    top: int = typer.Option(1, min=1, help="Names to show per photo, best first."),
    json_to: str | None = typer.Option(
        None,
        "--json",
        metavar="[FILE.json]",
        help="JSON into that file; without one, on standard output.",
    ),
    csv_to: str | None = typer.Option(
        None,
        "--csv",
        metavar="[FILE.csv]",
        help="CSV into that file; without one, on standard output.",
    ),
    parquet_to: str | None = typer.Option(
        None, "--parquet", metavar="FILE", help="Parquet into that file; needs cprompt[parquet]."
    ),
    strict: bool = typer.Option(
        False, "--strict", help="Answer nothing if one photo cannot be read."
    ),
    explain: bool = typer.Option(
        False,
        "--explain",
        help="Also show the chosen prompt, the nearest class keys and the score.",
    ),
    precision: str = typer.Option("fp32", help="fp32, or bf16 where it is fast."),
    device: str = DEVICE,
    weights: str | None = MOVED_WEIGHTS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Name what is on each photo, with a probability; unknown if that is too low.

    Photos that cannot be read are listed at the end, and the status is then 3.
    """
    if precision not in ("fp32", "bf16"):
        raise ConfigError(f"--precision {precision!r} is neither fp32 nor bf16")
    answer_files.check_targets(csv_to, json_to, parquet_to)

    from cprompt.classifier.classifier import ContinualClassifier
    from cprompt.classifier.readable import explain_readable

    files = [file for given in images for file in photo_files(given)]
    classifier = ContinualClassifier.load(
        model,
        device=device,
        precision="bf16" if precision == "bf16" else "fp32",
        weights=weights,
    )
    most = max(top, 3) if explain else top
    answers: list[Answer] = (
        list(classifier.explain(files, most))
        if strict
        else explain_readable(classifier, files, most)
    )
    unread = [answer for answer in answers if isinstance(answer, DataError)]
    messages = Console(stderr=True)
    if csv_to or json_to or parquet_to:
        rows = [row(file, each, top, explain) for file, each in zip(files, answers, strict=True)]
        for written in answer_files.write_rows(rows, csv_to, json_to, parquet_to):
            say(f"{len(rows)} photos in {written}", console=messages)
    else:
        Console().print(_table(files, answers, top, explain))
    if unread:
        say(
            f"{len(unread)} of {len(files)} photos cannot be read:",
            *(f"    {error}" for error in unread),
            console=messages,
        )
        raise typer.Exit(SOME_UNREAD)


def photo_files(given: Path) -> list[Path]:
    """The photo given, or all those in the folder given."""
    if not given.is_dir():
        return [given]
    from cprompt.data.image_files import list_images

    found = list_images(given)
    if not found:
        raise DataError(
            "has no photo in it", file=given, hint="name photos, or a folder that has some"
        )
    return found


def row(file: Path, answer: Answer, top: int, explain: bool) -> dict[str, Any]:
    """The answer about a photo, or why there is none, as a row for `answer_files`."""
    columns = ["label", "probability", "known", "ranking"]
    if explain:
        columns += ["familiarity", "prompt", "nearest_keys", "score"]
    if isinstance(answer, DataError):
        return {"image": shown_path(file), **dict.fromkeys(columns), "error": answer.message}
    known = asdict(answer)
    known["ranking"] = [list(each) for each in answer.ranking[:top]]
    return {"image": shown_path(file), **{name: known[name] for name in columns}, "error": None}


def _table(files: list[Path], answers: Sequence[Answer], top: int, explain: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("photo", overflow="fold")
    table.add_column("answer")
    table.add_column("%", justify="right")
    if top > 1:
        table.add_column("others")
    if explain:
        for column in ("familiarity", "prompt of batch", "nearest keys", "score"):
            table.add_column(column)
    for file, answer in zip(files, answers, strict=True):
        if isinstance(answer, DataError):
            table.add_row(escape(shown_path(file)), "[red]cannot be read[/]")
            continue
        label = escape(answer.label) if answer.known else f"[yellow]{escape(answer.label)}[/]"
        cells = [escape(shown_path(file)), label, f"{100 * answer.probability:.0f}"]
        if top > 1:
            others = answer.ranking[1 if answer.known else 0 : top]
            cells.append(escape(", ".join(f"{name} {100 * p:.0f} %" for name, p in others)))
        if explain:
            keys = ", ".join(f"{name} {cosine:.2f}" for name, cosine in answer.nearest_keys)
            cells.append(f"{answer.familiarity:.2f}")
            cells += [str(answer.prompt or "-"), escape(keys), f"{answer.score:.2f}"]
        table.add_row(*cells)
    return table
