"""`cprompt predict`: what is on each photo."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cprompt.cli.arguments import DEVICE, MODEL, MOVED_WEIGHTS, PLUGINS
from cprompt.errors import ConfigError, DataError

if TYPE_CHECKING:
    from cprompt.classifier.explanation import Explanation


def predict(
    model: Path = MODEL,
    images: list[Path] = typer.Argument(help="Photos, or folders of photos."),
    top: int = typer.Option(1, min=1, help="Names to show per photo, best first."),
    as_json: bool = typer.Option(False, "--json", help="One JSON list on standard output."),
    as_csv: bool = typer.Option(False, "--csv", help="CSV on standard output."),
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
    """Name what is on each photo, with a probability; unknown if that is too low."""
    if as_json and as_csv:
        raise ConfigError("--json and --csv exclude each other", hint="choose one")
    if precision not in ("fp32", "bf16"):
        raise ConfigError(f"--precision {precision!r} is neither fp32 nor bf16")

    from cprompt.classifier.classifier import ContinualClassifier

    files = [file for given in images for file in photo_files(given)]
    classifier = ContinualClassifier.load(
        model,
        device=device,
        precision="bf16" if precision == "bf16" else "fp32",
        weights=weights,
    )
    answers = classifier.explain(files, top=max(top, 3) if explain else top)
    rows = [_row(file, answer, top, explain) for file, answer in zip(files, answers, strict=True)]
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif as_csv:
        _write_csv(rows)
    else:
        Console().print(_table(files, answers, top, explain))


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


def _row(file: Path, answer: Explanation, top: int, explain: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "image": str(file),
        "label": answer.label,
        "probability": answer.probability,
        "known": answer.known,
        "ranking": [list(each) for each in answer.ranking[:top]],
    }
    if explain:
        more = asdict(answer)
        row |= {name: more[name] for name in ("prompt", "nearest_keys", "score")}
    return row


def _write_csv(rows: list[dict[str, Any]]) -> None:
    """Lists become `name=number` parts joined by a semicolon."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(rows[0])
    for row in rows:
        out.writerow(
            ";".join(f"{name}={number:.4f}" for name, number in value)
            if isinstance(value, list)
            else value
            for value in row.values()
        )


def _table(files: list[Path], answers: list[Explanation], top: int, explain: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("photo", overflow="fold")
    table.add_column("answer")
    table.add_column("%", justify="right")
    if top > 1:
        table.add_column("others")
    if explain:
        for column in ("prompt of batch", "nearest keys", "score"):
            table.add_column(column)
    for file, answer in zip(files, answers, strict=True):
        label = escape(answer.label) if answer.known else f"[yellow]{escape(answer.label)}[/]"
        row = [escape(str(file)), label, f"{100 * answer.probability:.0f}"]
        if top > 1:
            others = answer.ranking[1 if answer.known else 0 : top]
            row.append(escape(", ".join(f"{name} {100 * p:.0f} %" for name, p in others)))
        if explain:
            keys = ", ".join(f"{name} {cosine:.2f}" for name, cosine in answer.nearest_keys)
            row += [str(answer.prompt or "-"), escape(keys), f"{answer.score:.2f}"]
        table.add_row(*row)
    return table
