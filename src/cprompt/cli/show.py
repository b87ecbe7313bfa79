"""`cprompt show`: the settings and results of one run."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from cprompt.cli.output import say


def show(
    run: Path = typer.Argument(help="A run folder or a record file."),
    mode: str = typer.Option(
        "selected",
        help="Whose prompt answered: the selected task's, the right one (given), or the first.",
    ),
) -> None:
    """Print a run's settings, accuracy matrix and metrics from its record."""
    from cprompt.report.captions import UNKNOWN, backbone_text
    from cprompt.report.settings import benchmark_of, method_of
    from cprompt.report.terminal import matrix_table, movement_table, summary_table
    from cprompt.research.record import load_record

    record = load_record(run)
    console = Console()
    seeds = record.config.get("seeds", {})
    state = "finished" if record.finished else "under way"
    of = f"{record.n_planned} tasks"
    if record.partial:
        of = f"the first {of} of {record.stream.n_tasks}"
    say(
        f"{method_of(record)} on {benchmark_of(record)} ({record.dataset}), {state}: "
        f"{len(record.rows)} of {of}, {len(record.classes)} classes",
        f"backbone {backbone_text(record)}",
        "seeds: " + ", ".join(f"{n} {seeds.get(n, UNKNOWN)}" for n in ("order", "init", "data")),
        "time: " + ", ".join(f"{part} {s:.0f} s" for part, s in record.seconds.items()),
        "on " + ", ".join(f"{k} {v}" for k, v in record.environment.items()),
        *(f"warning: {warning}" for warning in record.warnings),
        console=console,
    )
    if not record.rows:
        return
    if mode not in record.rows[-1].correct:
        raise typer.BadParameter(
            f"{mode!r} was not measured; this record has {', '.join(record.rows[-1].correct)}"
        )
    console.print(matrix_table(record, "Accuracy in %", mode))
    console.print(summary_table(record))
    if any(record.movement):
        console.print(movement_table(record))
