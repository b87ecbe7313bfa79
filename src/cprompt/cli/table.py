"""`cprompt table`: the paper's tables, and your own, with our numbers beside the paper's."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from cprompt.cli.arguments import GPUS, ON, PLUGINS, SETTINGS, TRACK, parse_settings
from cprompt.cli.runs import run_all
from cprompt.errors import ConfigError
from cprompt.research.recipes import benchmark_recipe, is_table_file, recipe_names
from cprompt.settings import suggest

if TYPE_CHECKING:
    from cprompt.research.config import RunConfig
    from cprompt.research.tables import Table, TableRow, TableSpec

TABLES = [*recipe_names("tables"), "resources"]


class Format(str, Enum):
    """How a table is printed."""

    terminal = "terminal"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"


def table(
    context: typer.Context,
    name: str = typer.Argument(
        help=f"A table of the paper ({', '.join(TABLES)}), or a YAML file with your own."
    ),
    data: list[str] = typer.Option(
        [], help="Folder of the images; for a table of several datasets, DATASET=FOLDER."
    ),
    backbone: str | None = typer.Option(None, help="Another backbone than the paper's."),
    weights: str | None = typer.Option(None, help="Local file with the backbone's weights."),
    benchmark: list[str] = typer.Option(
        [], help="Only this benchmark of the table; may be given several times."
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
    runs: Path = typer.Option(Path("runs"), help="Folder that runs are kept in."),
    track: list[str] = TRACK,
    on: str | None = ON,
    gpus_per_run: float = GPUS,
    cpus_per_run: int = typer.Option(
        1, min=1, help="With --on: cores of each run, and its number of threads."
    ),
    max_parallel: int | None = typer.Option(
        None, min=1, help="With --on: runs at a time.", show_default="as many as there is room for"
    ),
    format: Format = typer.Option(Format.terminal, help="How to print the table."),
    settings: list[str] = SETTINGS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Run what a table still needs, and print it with the paper's own numbers.

    Settings apply to every run: --execution.device cuda,
    --training.precision bf16.
    """
    if name not in TABLES and not is_table_file(name):
        raise ConfigError(f"no table {name!r}", hint=suggest(name, TABLES))
    overrides = parse_settings([*settings, *context.args])

    from cprompt.research import cost
    from cprompt.research.tables import (
        PAPER_SEEDS,
        fill,
        finder,
        load_table,
        row_config,
        run_folder,
        select_benchmarks,
    )
    from cprompt.vit.loading import model_named_by

    if name == "resources":
        _print(cost.table(), format)
        return
    spec = select_benchmarks(load_table(name), benchmark)
    named = model_named_by(weights) if weights else None
    short = {"backbone.name": backbone or named, "backbone.weights": weights}
    overrides = {k: v for k, v in short.items() if v is not None} | overrides
    numbers = list(PAPER_SEEDS) if seeds is None else _parse_seeds(seeds)
    if small and data:
        raise ConfigError("--small draws its images and needs no --data", hint="leave --data out")
    roots = _roots(spec, data)

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
            plugins=plugins,
        )

    _print(fill(spec, numbers, finder(runs), small=small, overrides=overrides), format)


def _parse_seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text!r} is not whole numbers, such as 1993,87") from None


def _roots(spec: TableSpec, data: list[str]) -> dict[str, str]:
    """The folder of each benchmark's images, from FOLDER or DATASET=FOLDER."""
    dataset_of = {b: str(benchmark_recipe(b)["data"]["dataset"]) for b in spec.benchmarks}
    given: dict[str, str] = {}
    for entry in data:
        dataset, equals, folder = entry.partition("=")
        if equals and dataset in dataset_of.values():
            given[dataset] = folder
        elif len(set(dataset_of.values())) == 1:
            given[next(iter(dataset_of.values()))] = entry
        else:
            raise ConfigError(
                f"--data {entry!r} does not say which of the table's datasets it is",
                hint="write DATASET=FOLDER with DATASET one of "
                + ", ".join(sorted(set(dataset_of.values()))),
            )
    return {b: given[d] for b, d in dataset_of.items() if d in given}


def _print(table: Table, format: Format) -> None:
    from cprompt.report import tables as render

    if format is Format.terminal:
        console = Console()
        console.print(render.to_rich(table, console.width))
    else:
        print(render.FORMATS[format.value](table), end="")
