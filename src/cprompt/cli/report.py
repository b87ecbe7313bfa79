"""`cprompt report`: figures and tables from any runs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import typer
from rich.console import Console

from cprompt.cli import app
from cprompt.files import write_bytes
from cprompt.report.page import build
from cprompt.report.runs import find_runs


@app.command()
def report(
    runs: list[Path] = typer.Argument(
        help="Run folders, record files, or folders that are searched for records."
    ),
    out: Path = typer.Option(Path("report"), help="Folder for the page, the figures and tables."),
    title: str = typer.Option("Runs compared", help="Heading of the page."),
) -> None:
    """Make a page, figures and tables from the records of runs."""
    found, notes = find_runs(runs)
    made = build(found, title, notes)
    for name, data in sorted(made.files.items(), key=lambda file: file[0] == "report.html"):
        write_bytes(out / name, data)
    console = Console()
    for note in notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    unfinished = f", {made.unfinished} unfinished (in no mean)" if made.unfinished else ""
    console.print(
        f"{len(found)} runs in {made.series} series{unfinished}", highlight=False, soft_wrap=True
    )
    if old := _of_another_report(out, made.files):
        more = f" and {len(old) - 1} more" if len(old) > 1 else ""
        console.print(
            f"Not of this report, and left in {out}: {old[0]}{more}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"Report: {out / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def _of_another_report(out: Path, made: Collection[str]) -> list[str]:
    """Names of figures and tables in `out` that this report did not make."""
    there = (path for part in ("figures", "tables") for path in (out / part).glob("*"))
    return sorted({path.relative_to(out).as_posix() for path in there} - set(made))
