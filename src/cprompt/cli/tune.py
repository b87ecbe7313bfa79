"""`cprompt tune`: settings chosen on held-out training images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from cprompt.cli.arguments import PLUGINS, SETTINGS, TRACK, parse_settings
from cprompt.cli.output import say
from cprompt.cli.table import Format
from cprompt.errors import ConfigError
from cprompt.files import check_writable
from cprompt.research.recipes import benchmark_recipe

if TYPE_CHECKING:
    from cprompt.data.image_set import Dataset
    from cprompt.report.grid import Grid
    from cprompt.research.config import BackboneConfig
    from cprompt.research.tuning import Outcome
    from cprompt.vit.backbone import Backbone


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
    roots = _roots(names, data)
    for name in names:
        given = roots[name] | overrides
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
            _run(tries, track)
        found = {row.name: (row, outcomes(grid, row, name, finder(runs), given)) for row in rows}
        _print(tuning_grid(grid, name, found), format)
        if any(one.done for _, tried in found.values() for one in tried):
            write_json(runs / name / SUMMARY, summary(grid, name, finder(runs), overrides))
    if write is not None:
        write_bytes(write, protocol_table(grid, finder(runs), overrides).encode())


def _run(tries: dict[Path, Outcome], track: list[str]) -> None:
    """Run or resume tries; one that diverges is told and the next one goes on."""
    from cprompt.cli.progress import ProgressBars
    from cprompt.research.experiment import run
    from cprompt.research.record import FILE, load_record
    from cprompt.research.tracking import Tracking, make_trackers
    from cprompt.training.observers import Observers
    from cprompt.vit.loading import load_backbone

    console = Console(stderr=True)
    for folder in tries:
        check_writable(folder / FILE)
    if_stopped = "stopped; the same command continues from the last checkpoint"
    backbones: dict[BackboneConfig, Backbone] = {}
    datasets: dict[str, Dataset] = {}
    for number, (folder, one) in enumerate(tries.items(), start=1):
        config = one.config
        b = config.backbone
        if b not in backbones:
            backbones[b] = load_backbone(b.name, b.weights, b.image_size)
        key = repr((config.data.dataset, config.data.root, config.data.options))
        if key not in datasets:
            datasets[key] = config.data.load(config.seeds.data)
        label = f"[{number}/{len(tries)}] {config.method}, try {one.number}"
        with (
            Tracking(make_trackers(track, folder), config) as tracking,
            ProgressBars(
                label.replace("[", r"\["), console, lines=False, if_stopped=if_stopped
            ) as bars,
        ):
            try:
                run(
                    config,
                    folder,
                    resume=True,
                    observer=Observers(bars, tracking),
                    dataset=datasets[key],
                    backbone=backbones[b],
                )
            except ConfigError as error:
                if not ((folder / FILE).exists() and load_record(folder).failure):
                    raise
                bars.noticed(f"{label}: {error.message}")


def _roots(benchmarks: list[str], data: list[str]) -> dict[str, dict[str, str]]:
    """The folder of each benchmark's images, from FOLDER or DATASET=FOLDER, as a setting."""
    dataset_of = {b: str(benchmark_recipe(b)["data"]["dataset"]) for b in benchmarks}
    given: dict[str, dict[str, str]] = {}
    for entry in data:
        dataset, equals, folder = entry.partition("=")
        if equals and dataset in dataset_of.values():
            given[dataset] = {"data.root": folder}
        elif len(set(dataset_of.values())) == 1:
            given[next(iter(dataset_of.values()))] = {"data.root": entry}
        else:
            raise ConfigError(
                f"--data {entry!r} does not say which dataset it is",
                hint="write DATASET=FOLDER with DATASET one of "
                + ", ".join(sorted(set(dataset_of.values()))),
            )
    return {b: given.get(dataset, {}) for b, dataset in dataset_of.items()}


def _print(grid: Grid, format: Format) -> None:
    if format is Format.terminal:
        console = Console()
        console.print(grid.to_rich(console.width))
    else:
        printed = {"markdown": grid.to_markdown, "latex": grid.to_latex, "csv": grid.to_csv}
        print(printed[format.value](), end="")
