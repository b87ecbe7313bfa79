"""`cprompt tune`: settings chosen on held-out training images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from cprompt.cli.arguments import (
    CPUS_PER_RUN,
    GPUS,
    MAX_PARALLEL,
    ON,
    PLUGINS,
    SETTINGS,
    TRACK,
    parse_settings,
)
from cprompt.cli.output import say
from cprompt.cli.runs import data_roots, run_all
from cprompt.cli.table import Format
from cprompt.errors import ConfigError

if TYPE_CHECKING:
    from cprompt.report.grid import Grid


def tune(
    benchmark: str | None = typer.Argument(
        None, help="A benchmark; without one, every benchmark of the protocol."
    ),
    method: list[str] = typer.Option(
        [], help="Only this row of the protocol, such as slca; may be given several times."
    ),
    data: list[str] = typer.Option(
        [], help="Folder of the images; for several datasets, DATASET=FOLDER."
    ),
    backbone: str | None = typer.Option(None, help="Another backbone than the paper's."),
    weights: str | None = typer.Option(None, help="Local file with the backbone's weights."),
    only: int | None = typer.Option(None, help="Only the try of this number, from 1."),
    only_show: bool = typer.Option(
        False, "--only-show", help="Run nothing; show the tries that exist."
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print a `cprompt run` command for each try still to run."
    ),
    write: Path | None = typer.Option(
        None,
        help="Write the table of all rows under what was chosen, for `cprompt table FILE.yaml`.",
    ),
    runs: Path = typer.Option(Path("runs"), help="Folder that runs are kept in."),
    track: list[str] = TRACK,
    on: str | None = ON,
    gpus_per_run: float = GPUS,
    cpus_per_run: int = CPUS_PER_RUN,
    max_parallel: int | None = MAX_PARALLEL,
    format: Format = typer.Option(Format.terminal, help="How to print the tables."),
    settings: list[str] = SETTINGS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Choose flavour, learning rate and epochs of each method without test images.

    Each try learns the first three tasks from nine tenths of the training
    images and is judged by the others. Every method has the same number of
    tries. Finished tries are not run again.
    """
    overrides = parse_settings(settings)

    from cprompt.files import write_bytes, write_json
    from cprompt.report.tuning import tuning_grid
    from cprompt.research.tables import finder, run_folder
    from cprompt.research.tuning import (
        SUMMARY,
        command,
        load_grid,
        outcomes,
        protocol_table,
        summary,
    )
    from cprompt.vit.loading import model_named_by

    grid = load_grid()
    named = model_named_by(weights) if weights else None
    short = {"backbone.name": backbone or named, "backbone.weights": weights}
    overrides = {k: v for k, v in short.items() if v is not None} | overrides
    rows = [grid.row(name) for name in method] or list(grid.rows)
    if only is not None and not 1 <= only <= max(len(row.tries) for row in rows):
        raise ConfigError(f"--only {only}: tries are counted from 1 to {len(rows[0].tries)}")
    names = [benchmark] if benchmark else list(grid.benchmarks)
    roots = data_roots(names, data)
    for name in names:
        given = ({"data.root": roots[name]} if name in roots else {}) | overrides
        tries = {
            run_folder(one.config, runs): one
            for row in rows
            for one in outcomes(grid, row, name, finder(runs), given)
            if not one.done and only in (None, one.number)
        }
        if dry_run:
            say(*(f"{command(t.config)} --out {f} --resume" for f, t in tries.items()))
            continue
        if not only_show:
            run_all(
                {folder: one.config for folder, one in tries.items()},
                track=track,
                on=on,
                gpus_per_run=gpus_per_run,
                cpus_per_run=cpus_per_run,
                max_parallel=max_parallel,
                plugins=plugins,
                may_diverge=True,
            )
        found = {row.name: (row, outcomes(grid, row, name, finder(runs), given)) for row in rows}
        _print(tuning_grid(grid, name, found), format)
        if any(one.done for _, tried in found.values() for one in tried):
            write_json(runs / name / SUMMARY, summary(grid, name, finder(runs), overrides))
    if write is not None:
        write_bytes(write, protocol_table(grid, finder(runs), overrides).encode())


def _print(grid: Grid, format: Format) -> None:
    if format is Format.terminal:
        console = Console()
        console.print(grid.to_rich(console.width))
    else:
        printed = {"markdown": grid.to_markdown, "latex": grid.to_latex, "csv": grid.to_csv}
        print(printed[format.value](), end="")
