"""`cprompt compare`: two runs, or two sets of seeds, side by side."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from cprompt.report.comparison import Comparison


class Format(str, Enum):
    """How a comparison is printed."""

    terminal = "terminal"
    markdown = "markdown"
    csv = "csv"
    json = "json"


_SIDE = (
    "A run folder, a record file, or a folder with several seeds of the same settings; or a "
    "pattern for run folders, in quotes: 'runs/cars10/l2p-*'."
)


def compare(
    a: Path = typer.Argument(help=_SIDE),
    b: Path = typer.Argument(help=_SIDE),
    format: Format = typer.Option(Format.terminal, help="How to print it."),
) -> None:
    """Show what differs between A and B, and test seed by seed whether their results differ."""
    from cprompt.report import comparison
    from cprompt.report.runs import find_runs

    (runs_a, notes_a), (runs_b, notes_b) = find_runs([a]), find_runs([b])
    found = comparison.compare(runs_a, runs_b)
    found.notes.extend([*notes_a, *notes_b])
    if format is Format.terminal:
        _print(found)
    else:
        print(comparison.FORMATS[format.value](found), end="")


def _print(found: Comparison) -> None:
    from rich.console import Console
    from rich.text import Text

    from cprompt.report import comparison

    console = Console()
    for name, text in zip("AB", found.runs, strict=True):
        console.print(Text(f"{name}: {text}"), soft_wrap=True)
    if not found.settings:
        console.print("No setting differs except seeds.")
    for grid in comparison.grids(found):
        console.print(grid.to_rich(console.width))
    for note in found.notes:
        console.print(Text(note))
