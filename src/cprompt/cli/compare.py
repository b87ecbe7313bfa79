"""`cprompt compare`: two runs, or two sets of seeds, side by side."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from cprompt.cli import app
from cprompt.report import comparison
from cprompt.report.runs import find_runs


class Format(str, Enum):
    """How a comparison is printed."""

    terminal = "terminal"
    markdown = "markdown"
    csv = "csv"
    json = "json"


SIDE = (
    "A run folder, a record file, or a folder with several seeds of the same settings; or a "
    "pattern for run folders, in quotes: 'runs/cars10/l2p-*'."
)


@app.command()
def compare(
    a: Path = typer.Argument(help=SIDE),
    b: Path = typer.Argument(help=SIDE),
    format: Format = typer.Option(Format.terminal, help="How to print it."),
) -> None:
    """Say what differs between A and B, and test seed by seed whether their results do."""
    one, two = find_runs([a]), find_runs([b])
    found = comparison.compare(one[0], two[0])
    found.notes.extend([*one[1], *two[1]])
    if format is Format.terminal:
        _print(found)
    else:
        print(comparison.FORMATS[format.value](found), end="")


def _print(found: comparison.Comparison) -> None:
    console = Console()
    for name, text in zip("AB", found.runs, strict=True):
        console.print(Text(f"{name}: {text}"), soft_wrap=True)
    if not found.settings:
        console.print("No setting differs but seeds.")
    for grid in comparison.grids(found):
        console.print(grid.to_rich(console.width))
    for note in found.notes:
        console.print(Text(note))
