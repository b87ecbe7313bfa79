"""`cprompt table`: the paper's tables, and your own, with our numbers beside the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cprompt.cli import arguments
from cprompt.cli.output import Format, print_table
from cprompt.cli.runs import backbone_settings, data_roots, run_all
from cprompt.errors import ConfigError
from cprompt.research.recipes import is_table_file, recipe_names
from cprompt.settings import suggest

if TYPE_CHECKING:
    from cprompt.research.config import RunConfig
    from cprompt.research.tables import Table, TableRow

TABLES = [*recipe_names("tables"), "resources"]


def table(
    context: typer.Context,
    name: str = typer.Argument(
        help=f"A table of the paper ({', '.join(TABLES)}), or a YAML file with your own."
    ),
    data: list[str] = typer.Option(
        [], help="Folder of the images; for a table of several datasets, DATASET=FOLDER."
    ),
    backbone: str | None = arguments.BACKBONE,
    weights: str | None = arguments.WEIGHTS,
    benchmark: list[str] = typer.Option(
        [], help="Only this benchmark of the table; may be given several times."
    ),
    only: list[int] = typer.Option(
        [], help="Only the row of this number, from 1; may be given several times."
    ),
    seeds: str | None = typer.Option(
        None,
        show_default="1993,87,1013, the paper's",
        help="Seeds of class order, initialisation and data.",
    ),
    small: bool = typer.Option(
        False, "--small", help="Drawn images and the embedded backbone: minutes on a CPU."
    ),
    only_show: bool = typer.Option(
        False, "--only-show", help="Run nothing; show the runs that exist."
    ),
    runs: Path = arguments.RUNS,
    track: list[str] = arguments.TRACK,
    on: str | None = arguments.ON,
    gpus_per_run: float = arguments.GPUS,
    cpus_per_run: int = arguments.CPUS_PER_RUN,
    max_parallel: int | None = arguments.MAX_PARALLEL,
    together: int = arguments.TOGETHER,
    format: Format = typer.Option(Format.terminal, help="How to print the table."),
    settings: list[str] = arguments.SETTINGS,
    plugins: list[str] = arguments.PLUGINS,
) -> None:
    """Run what a table still needs, and print it with the paper's own numbers.

    Settings apply to every run: --execution.device cuda,
    --training.precision bf16.
    """
    if name not in TABLES and not is_table_file(name):
        raise ConfigError(f"no table {name!r}", hint=suggest(name, TABLES))
    overrides = arguments.parse_settings([*settings, *context.args])

    if name == "resources":
        from cprompt.research import cost  # counts operations with PyTorch, which imports Triton

        _print(cost.table(), format)
        return
    from cprompt.research.tables import (
        PAPER_SEEDS,
        fill,
        finder,
        load_table,
        row_config,
        run_folder,
        select_benchmarks,
        select_rows,
    )

    spec = select_rows(select_benchmarks(load_table(name), benchmark), only)
    overrides = backbone_settings(backbone, weights) | overrides
    numbers = list(PAPER_SEEDS) if seeds is None else _parse_seeds(seeds)
    if small and data:
        raise ConfigError("--small draws its images and needs no --data", hint="leave --data out")
    roots = data_roots(spec.benchmarks, data)

    def configured(row: TableRow, benchmark: str, seed: int) -> RunConfig:
        root = {"data.root": roots[benchmark]} if roots.get(benchmark) else {}
        return row_config(row, benchmark, seed, small=small, overrides=root | overrides)

    if not only_show:
        configs = {
            run_folder(c, runs): c
            for row in spec.rows
            for benchmark in spec.benchmarks
            for seed in numbers
            for c in [configured(row, benchmark, seed)]
        }
        run_all(
            configs,
            track=track,
            on=on,
            gpus_per_run=gpus_per_run,
            cpus_per_run=cpus_per_run,
            max_parallel=max_parallel,
            together=together,
            plugins=plugins,
        )

    _print(fill(spec, numbers, finder(runs), small=small, overrides=overrides), format)


def _parse_seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text!r} is not whole numbers, such as 1993,87") from None


def _print(table: Table, format: Format) -> None:
    from cprompt.report import tables as render

    print_table(
        format, lambda width: render.to_rich(table, width), lambda to: render.FORMATS[to](table)
    )
