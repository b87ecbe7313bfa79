"""`cprompt table`: the paper's tables, ours beside the paper's."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import typer
from rich.console import Console

from cprompt.cli import app
from cprompt.cli.arguments import TRACK, TakesSettings, parse_settings
from cprompt.cli.progress import ProgressBars
from cprompt.data.image_set import Dataset
from cprompt.errors import ConfigError
from cprompt.report import tables as render
from cprompt.research import cost
from cprompt.research.config import BackboneConfig, RunConfig
from cprompt.research.experiment import run
from cprompt.research.recipes import benchmark_recipe
from cprompt.research.record import FILE, load_record
from cprompt.research.tables import (
    PAPER_SEEDS,
    Row,
    Table,
    TableSpec,
    fill,
    finder,
    load_table,
    only,
    row_config,
    run_folder,
    table_names,
)
from cprompt.research.tracking import Tracking, make_trackers
from cprompt.settings import suggest
from cprompt.training.observers import Observers
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT

TABLES = [*table_names(), "resources"]


class Format(str, Enum):
    """How a table is printed."""

    terminal = "terminal"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"


STOPPED = "stopped; the same command goes on from the last checkpoint"


@app.command(
    cls=TakesSettings,
    epilog="Tables: " + ", ".join(TABLES) + ". Settings by dotted name "
    "apply to every run: --execution.device cuda, --training.precision bf16.",
)
def table(
    context: typer.Context,
    name: str = typer.Argument(help="A table of the paper; see below."),
    data: list[str] = typer.Option(
        [], help="Folder of the images; where a table has several datasets, DATASET=FOLDER."
    ),
    backbone: str | None = typer.Option(None, help="Another frozen model than the paper's."),
    weights: str | None = typer.Option(None, help="Local file with the backbone's weights."),
    benchmark: list[str] = typer.Option(
        [], help="Only this one of the table's benchmarks; may be given several times."
    ),
    seeds: str = typer.Option(
        ",".join(map(str, PAPER_SEEDS)), help="Seeds of class order, initialisation and data."
    ),
    small: bool = typer.Option(
        False, "--small", help="Drawn images and the embedded backbone: minutes on a CPU."
    ),
    only_show: bool = typer.Option(False, "--only-show", help="Run nothing; show what there is."),
    runs: Path = typer.Option(Path("runs"), help="Folder that runs are kept in."),
    track: list[str] = TRACK,
    format: Format = typer.Option(Format.terminal, help="How to print the table."),
) -> None:
    """Run what a table of the paper still needs, and print it with the paper's own numbers."""
    if name not in TABLES:
        raise ConfigError(f"no table {name!r}{suggest(name, TABLES)}")
    overrides = parse_settings(context.args)
    if name == "resources":
        _print(cost.table(), format)
        return
    spec = only(load_table(name), benchmark)
    short = {"backbone.name": backbone, "backbone.weights": weights}
    overrides = {k: v for k, v in short.items() if v is not None} | overrides
    numbers = _seeds(seeds)
    if small and data:
        raise ConfigError("--small draws its images; leave --data out")
    roots = _roots(spec, data)

    def configured(row: Row, benchmark: str, seed: int) -> RunConfig:
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
    console = Console(stderr=True)
    missing = {
        folder: config
        for folder, config in configs.items()
        if not ((folder / FILE).exists() and load_record(folder).finished)
    }
    backbones: dict[BackboneConfig, FrozenViT] = {}
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
                label.replace("[", r"\["), console, lines=False, if_stopped=STOPPED
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


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text!r}: expected whole numbers, such as 1993,87") from None


def _roots(spec: TableSpec, data: list[str]) -> dict[str, str]:
    """Where each benchmark's images are, from FOLDER or DATASET=FOLDER."""
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
                f"--data {entry!r}: this table has several datasets; write DATASET=FOLDER with "
                f"DATASET one of {', '.join(sorted(set(dataset_of.values())))}"
            )
    return {b: given[d] for b, d in dataset_of.items() if d in given}


def _print(table: Table, format: Format) -> None:
    if format is Format.terminal:
        console = Console()
        console.print(render.to_rich(table, console.width))
    else:
        print(render.FORMATS[format.value](table), end="")
