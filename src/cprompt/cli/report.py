"""`cprompt report`: figures and tables from any runs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import typer

from cprompt.cli.output import say
from cprompt.errors import counted
from cprompt.files import check_writable, write_bytes


def report(
    runs: list[Path] = typer.Argument(
        help="Run folders, record files, or folders that are searched for records."
    ),
    out: Path = typer.Option(Path("report"), help="Folder for the page, the figures and tables."),
    title: str = typer.Option("Runs compared", help="Heading of the page."),
) -> None:
    """Make a page, figures and tables from the records of runs."""
    check_writable(out / "report.html")

    from cprompt.report.page import build
    from cprompt.report.runs import find_runs

    found, notes = find_runs(runs)
    made = build(found, title, notes)
    for name, data in sorted(made.files.items(), key=lambda file: file[0] == "report.html"):
        write_bytes(out / name, data)
    unfinished = f", {made.unfinished} unfinished (in no mean)" if made.unfinished else ""
    say(*notes, f"{counted(len(found), 'run')} in {made.series} series{unfinished}")
    if old := _of_another_report(out, made.files):
        more = f" and {len(old) - 1} more" if len(old) > 1 else ""
        say(f"Left in {out} from another report: {old[0]}{more}")
    say(f"Report: {out / 'report.html'}")


def _of_another_report(out: Path, made: Collection[str]) -> list[str]:
    """Names of figures and tables in `out` that this report did not make."""
    there = (path for part in ("figures", "tables") for path in (out / part).glob("*"))
    return sorted({path.relative_to(out).as_posix() for path in there} - set(made))
