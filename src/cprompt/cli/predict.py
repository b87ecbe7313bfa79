"""`cprompt predict`: what is on each photo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cprompt.cli import answer_files
from cprompt.cli.arguments import (
    DEVICE,
    GPUS,
    MODEL,
    MOVED_WEIGHTS,
    ON,
    PLUGINS,
    PRECISION,
    SOME_UNREAD,
)
from cprompt.cli.output import fits, print_whole, say
from cprompt.errors import ConfigError, DataError, counted
from cprompt.files import shown_path

if TYPE_CHECKING:
    from cprompt.classifier.explanation import Explanation

Answer: TypeAlias = Union["Explanation", DataError]
"""What is known about a photo, or why it could not be read."""


def predict(
    model: Path = MODEL,
    images: list[str] = typer.Argument(
        help="Photos, folders of photos, lists of photos as .txt, .csv or .parquet, or .tar files "
        "of WebDataset. All of them may be URLs."
    ),
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
        None, "--parquet", metavar="FILE", help="Parquet into that file; needs cprompt\\[parquet]."
    ),
    out: Path | None = typer.Option(
        None,
        help="Folder for the answers in parts, as Parquet; the same command goes on with those "
        "that are missing.",
    ),
    jsonl: bool = typer.Option(False, "--jsonl", help="With --out: JSON, a line per photo."),
    on: str | None = ON,
    shards: int | None = typer.Option(
        None, min=1, help="With --out: number of parts.", show_default="by size"
    ),
    gpus_per_worker: float = GPUS,
    strict: bool = typer.Option(
        False, "--strict", help="Answer nothing if one photo cannot be read."
    ),
    explain: bool = typer.Option(
        False,
        "--explain",
        help="Also show familiarity, the score and, of methods that have them, the chosen prompt "
        "and the nearest class keys.",
    ),
    precision: str = PRECISION,
    device: str = DEVICE,
    weights: str | None = MOVED_WEIGHTS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Name what is on each photo, with a probability; unknown if that is too low.

    Photos that cannot be read are listed at the end, and the status is then 3.
    """
    if precision not in ("fp32", "bf16", "auto"):
        raise ConfigError(f"--precision {precision!r} is none of fp32, bf16 and auto")
    answer_files.check_targets(csv_to, json_to, parquet_to)
    if out is None and (on or jsonl or shards):
        raise ConfigError("--on, --jsonl and --shards need a folder", hint="add --out FOLDER")
    if out is not None:
        if csv_to or json_to or parquet_to or strict:
            raise ConfigError("--out excludes --csv, --json, --parquet and --strict")
        if precision == "auto":
            raise ConfigError(
                "--precision auto chooses for one machine, and --out may be continued on others",
                hint="choose fp32 or bf16",
            )
        how = {"device": device, "precision": precision, "top": max(top, 3) if explain else top}
        work = {"gpus": gpus_per_worker, "plugins": tuple(plugins)}
        _in_parts(model, images, out, jsonl, on, shards, weights, how, work, top, explain)
        return

    from cprompt.classifier.classifier import ContinualClassifier
    from cprompt.classifier.readable import explain_readable

    files = [file for given in images for file in photo_files(given)]
    classifier = ContinualClassifier.load(
        model,
        device=device,
        precision=precision,
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
            say(f"{counted(len(rows), 'photo')} in {written}", console=messages)
    else:
        console = Console()
        table = _table(files, answers, top, explain, ", ")
        if not fits(table, console):
            table = _table(files, answers, top, explain, "\n")
        print_whole(table, console)
    end_if_unread(unread, len(files), messages)


def end_if_unread(unread: Sequence[DataError], photos: int, console: Console) -> None:
    """List the photos that could not be read, if any, and end with `SOME_UNREAD`."""
    if unread:
        say(
            f"{len(unread)} of {counted(photos, 'photo')} cannot be read:",
            *(f"    {error}" for error in unread),
            console=console,
        )
        raise typer.Exit(SOME_UNREAD)


def photo_files(given: str | Path) -> list[Any]:
    """The photo given, or all those in the folder, list or tar file given."""
    from cprompt.classifier.photo_places import photos_at

    return photos_at(given, labelled=False).photos


def _in_parts(
    model: Path,
    images: Sequence[str],
    out: Path,
    jsonl: bool,
    on: str | None,
    shards: int | None,
    weights: str | None,
    how: dict[str, Any],
    work: dict[str, Any],
    top: int,
    explain: bool,
) -> None:
    """Answer into a folder, a part at a time, whatever is not there yet."""
    from cprompt.cli.answer_parts import AnswerParts, digest
    from cprompt.cli.progress import AnswerProgress
    from cprompt.cluster.answering import Questions, answer_here, answer_on_ray, parts_of
    from cprompt.cluster.tasks import Work

    photos = [photo for given in images for photo in photo_files(given)]
    ranges = parts_of(len(photos), shards)
    questions = Questions.of(model, weights, **how)
    about = {
        "model": questions.model_id,
        "photos": len(photos),
        "list": digest(photos),
        "top": top,
        "explain": explain,
        "precision": how["precision"],
    }
    parts = AnswerParts(out, len(ranges), "jsonl" if jsonl else "parquet", about)
    missing = {number: ranges[number] for number in parts.missing()}
    console = Console(stderr=True)
    unread = sum(parts.unread(number) for number in range(len(ranges)) if number not in missing)
    unknown = 0
    if missing:
        total = sum(map(len, missing.values()))
        with AnswerProgress(total, console) as progress:

            def keep(number: int, answers: Sequence[Answer]) -> None:
                nonlocal unread, unknown
                part = ranges[number]
                files = photos[part.start : part.stop]
                rows = [row(f, each, top, explain) for f, each in zip(files, answers, strict=True)]
                parts.write(number, rows)
                unread += sum(isinstance(each, DataError) for each in answers)
                unknown += sum(not isinstance(e, DataError) and not e.known for e in answers)
                progress.advance(len(answers), unknown)

            if on is None:
                answer_here(questions, photos, missing, keep)
            else:
                answer_on_ray(on, questions, photos, missing, keep, Work(**work))
    answered = sum(map(len, missing.values()))
    there = len(photos) - answered
    before = f", {counted(there, 'was', 'were')} there already" if there else ""
    say(
        f"{counted(answered, 'photo')} answered, {unknown} of them unknown{before}: "
        f"{counted(len(ranges), 'part')} in {out}",
        console=console,
    )
    if unread:
        say(
            f"{counted(unread, 'photo')} cannot be read; the column error says why",
            console=console,
        )
        raise typer.Exit(SOME_UNREAD)


def row(file: Any, answer: Answer, top: int, explain: bool) -> dict[str, Any]:
    """The answer about a photo, or why there is none, as a row for `answer_files`."""
    columns = ["label", "probability", "known", "ranking"]
    if explain:
        columns += ["familiarity", "prompt", "nearest_keys", "score"]
    if isinstance(answer, DataError):
        return {"image": shown_path(file), **dict.fromkeys(columns), "error": answer.message}
    known = asdict(answer)
    known["ranking"] = [list(each) for each in answer.ranking[:top]]
    return {"image": shown_path(file), **{name: known[name] for name in columns}, "error": None}


def _table(
    files: list[Any], answers: Sequence[Answer], top: int, explain: bool, separator: str
) -> Table:
    """A row per photo; `separator` stands between several names in a cell."""
    known = [answer for answer in answers if not isinstance(answer, DataError)]
    columns: dict[str, Callable[[Explanation], str]] = {
        "answer": lambda a: escape(a.label) if a.known else f"[yellow]{escape(a.label)}[/]",
        "%": lambda a: f"{100 * a.probability:.0f}",
    }
    if top > 1:
        columns["others"] = lambda a: escape(
            separator.join(
                f"{name} {100 * p:.0f} %" for name, p in a.ranking[1 if a.known else 0 : top]
            )
        )
    if explain:
        columns["familiarity"] = lambda a: f"{a.familiarity:.2f}"
        if any(a.prompt is not None for a in known):  # not every method chooses one
            columns["prompt of batch"] = lambda a: str(a.prompt or "-")
        if any(a.nearest_keys for a in known):
            columns["nearest keys"] = lambda a: escape(
                separator.join(f"{name} {cosine:.2f}" for name, cosine in a.nearest_keys)
            )
        columns["score"] = lambda a: f"{a.score:.2f}"
    table = Table(box=None, pad_edge=False)
    table.add_column("photo")
    for column in columns:
        right = column in ("%", "familiarity", "score")
        table.add_column(column, justify="right" if right else "left")
    for file, answer in zip(files, answers, strict=True):
        cells = (
            ["[red]cannot be read[/]"]
            if isinstance(answer, DataError)
            else [cell(answer) for cell in columns.values()]
        )
        table.add_row(escape(shown_path(file)), *cells)
    return table
