"""`cprompt table`: the paper's tables, and your own, with our numbers beside the paper's."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from cprompt.cli.arguments import PLUGINS, SETTINGS, TRACK, parse_settings
from cprompt.errors import ConfigError
from cprompt.files import check_writable
from cprompt.research.recipes import benchmark_recipe, is_table_file, recipe_names
from cprompt.settings import suggest

if TYPE_CHECKING:
    from cprompt.data.image_set import Dataset
    from cprompt.research.config import BackboneConfig, RunConfig
    from cprompt.research.tables import Table, TableRow, TableSpec
    from cprompt.vit.backbone import Backbone

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
        _run_missing(configs, track)

    _print(fill(spec, numbers, finder(runs), small=small, overrides=overrides), format)


def _run_missing(configs: dict[Path, RunConfig], track: list[str]) -> None:
    """Run or resume what is not finished; backbones and datasets are loaded once."""
    from cprompt.cli.progress import ProgressBars
    from cprompt.research.experiment import run
    from cprompt.research.record import FILE, load_record
    from cprompt.research.tracking import Tracking, make_trackers
    from cprompt.training.observers import Observers
    from cprompt.vit.loading import load_backbone

    console = Console(stderr=True)
    missing = {
        folder: config
        for folder, config in configs.items()
        if not ((folder / FILE).exists() and load_record(folder).finished)
    }
    for folder in missing:
        check_writable(folder / FILE)
    if_stopped = "stopped; the same command continues from the last checkpoint"
    backbones: dict[BackboneConfig, Backbone] = {}
    datasets: dict[str, Dataset] = {}
    for number, (folder, config) in enumerate(missing.items(), start=1):
        b = config.backbone
        if b not in backbones:
            backbones[b] = load_backbone(b.name, b.weights, b.image_size)
        key = repr((config.data, config.seeds.data if config.data.validation else None))
        if key not in datasets:
            datasets[key] = config.data.load(config.seeds.data)
        label = f"[{number}/{len(missing)}] {config.method} {config.benchmark}"
        with (
            Tracking(make_trackers(track, folder), config) as tracking,
            ProgressBars(
                label.replace("[", r"\["), console, lines=False, if_stopped=if_stopped
            ) as bars,
        ):
            run(
                config,
                folder,
                resume=True,
                observer=Observers(bars, tracking),
                dataset=datasets[key],
                backbone=backbones[b],
            )


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
