"""`cprompt tune`: settings chosen on held-out training images."""

from __future__ import annotations

from pathlib import Path

import typer

from cprompt.cli import arguments
from cprompt.cli.output import Format, print_table, say
from cprompt.cli.runs import backbone_settings, data_roots, run_all
from cprompt.errors import ConfigError


def tune(
    benchmark: str | None = typer.Argument(
        None, help="A benchmark; without one, every benchmark of the protocol."
    ),
    benchmarks: list[str] = typer.Option(
        [], "--benchmark", help="The same; may be given several times."
    ),
    method: list[str] = typer.Option(
        [], help="Only this row of the protocol, such as slca; may be given several times."
    ),
    data: list[str] = typer.Option(
        [], help="Folder of the images; for several datasets, DATASET=FOLDER."
    ),
    backbone: str | None = arguments.BACKBONE,
    weights: str | None = arguments.WEIGHTS,
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
    runs: Path = arguments.RUNS,
    track: list[str] = arguments.TRACK,
    on: str | None = arguments.ON,
    gpus_per_run: float = arguments.GPUS,
    cpus_per_run: int = arguments.CPUS_PER_RUN,
    max_parallel: int | None = arguments.MAX_PARALLEL,
    together: int = arguments.TOGETHER,
    format: Format = typer.Option(Format.terminal, help="How to print the tables."),
    settings: list[str] = arguments.SETTINGS,
    plugins: list[str] = arguments.PLUGINS,
) -> None:
    """Choose flavour, learning rate and epochs of each method without test images.

    Each try learns the first three tasks from nine tenths of the training
    images and is judged by the others. Every method has the same number of
    tries. Finished tries are not run again.
    """
    overrides = arguments.parse_settings(settings)

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

    grid = load_grid()
    overrides = backbone_settings(backbone, weights) | overrides
    rows = [grid.row(name) for name in method] or list(grid.to_choose)
    if only is not None and not 1 <= only <= max(len(row.tries) for row in rows):
        raise ConfigError(f"--only {only}: tries are counted from 1 to {len(rows[0].tries)}")
    asked = [benchmark, *benchmarks] if benchmark else benchmarks
    names = list(dict.fromkeys(asked)) or list(grid.benchmarks)
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
                together=together,
                plugins=plugins,
                may_diverge=True,
            )
        found = {row.name: (row, outcomes(grid, row, name, finder(runs), given)) for row in rows}
        shown = tuning_grid(grid, name, found)
        print_table(format, shown.to_rich, shown.to_text)
        if any(one.done for _, tried in found.values() for one in tried):
            write_json(runs / name / SUMMARY, summary(grid, name, finder(runs), overrides))
    if write is not None:
        write_bytes(write, protocol_table(grid, finder(runs), overrides).encode())
