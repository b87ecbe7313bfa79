"""Many runs, here one after another or on Ray at the same time; finished ones are left alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cprompt.cli.output import LiveDisplay
from cprompt.errors import ClusterError, ConfigError
from cprompt.files import check_writable
from cprompt.research.recipes import benchmark_recipe

if TYPE_CHECKING:
    from cprompt.cluster.runs import Standing
    from cprompt.data.image_set import Dataset
    from cprompt.research.config import BackboneConfig, RunConfig
    from cprompt.vit.backbone import Backbone

IF_STOPPED = "stopped; the same command continues from the last checkpoint"


def run_all(
    configs: Mapping[Path, RunConfig],
    *,
    track: Sequence[str] = ("jsonl",),
    on: str | None = None,
    gpus_per_run: float = 0.0,
    cpus_per_run: int = 1,
    max_parallel: int | None = None,
    plugins: Sequence[str] = (),
    may_diverge: bool = False,
) -> None:
    """Run or resume what is not finished, each run into its folder.

    Without `on`, in this process, one after another; otherwise on Ray, see
    `cprompt.cluster.connection.connected`. The results are the same: bit for bit on a CPU with
    `cpus_per_run` threads. With `may_diverge`, a run whose loss becomes infinite is told, its
    record says so, and the others go on.
    """
    from cprompt.cluster.runs import is_finished
    from cprompt.research.record import FILE

    missing = {folder: config for folder, config in configs.items() if not is_finished(folder)}
    for folder in missing:
        check_writable(folder / FILE)
    if on is None:
        _run_here(missing, track, may_diverge)
        return

    from cprompt.cluster.runs import run_on_ray
    from cprompt.cluster.tasks import Work

    work = Work(threads=cpus_per_run, gpus=gpus_per_run, plugins=tuple(plugins))
    try:
        with LiveTable(missing) as live:
            run_on_ray(
                missing, on, work=work, track=track, max_parallel=max_parallel, watch=live.update
            )
    except ClusterError:
        if not may_diverge or not all(is_finished(f) or _diverged(f) for f in missing):
            raise


def _diverged(folder: Path) -> bool:
    from cprompt.research.record import FILE, load_record

    return (folder / FILE).exists() and load_record(folder).failure is not None


def _run_here(
    missing: Mapping[Path, RunConfig], track: Sequence[str], may_diverge: bool = False
) -> None:
    """Backbones and datasets are loaded once."""
    from cprompt.cli.progress import ProgressBars
    from cprompt.research.experiment import run
    from cprompt.research.tracking import Tracking, make_trackers
    from cprompt.training.observers import Observers
    from cprompt.vit.loading import load_backbone

    console = Console(stderr=True)
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
            Tracking(make_trackers(list(track), folder), config) as tracking,
            ProgressBars(
                label.replace("[", r"\["), console, lines=False, if_stopped=IF_STOPPED
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
                if not (may_diverge and _diverged(folder)):
                    raise
                bars.noticed(f"{label}: {error.message}")


def backbone_settings(backbone: str | None, weights: str | None) -> dict[str, str]:
    """The settings that --backbone and --weights stand for; a file may be named after its model."""
    from cprompt.vit.loading import model_named_by

    named = model_named_by(weights) if weights else None
    given = {"backbone.name": backbone or named, "backbone.weights": weights}
    return {name: value for name, value in given.items() if value is not None}


def data_roots(benchmarks: Sequence[str], data: Sequence[str]) -> dict[str, str]:
    """The folder of each benchmark's images, from FOLDER or DATASET=FOLDER."""
    dataset_of = {b: str(benchmark_recipe(b)["data"]["dataset"]) for b in benchmarks}
    given: dict[str, str] = {}
    for entry in data:
        dataset, equals, folder = entry.partition("=")
        if equals and dataset in dataset_of.values():
            given[dataset] = folder
        elif len(set(dataset_of.values())) == 1:
            given[next(iter(dataset_of.values()))] = entry
        else:
            raise ConfigError(
                f"--data {entry!r} does not say which dataset it is",
                hint="write DATASET=FOLDER with DATASET one of "
                + ", ".join(sorted(set(dataset_of.values()))),
            )
    return {b: given[d] for b, d in dataset_of.items() if d in given}


class LiveTable(LiveDisplay):
    """The runs that are at work, and how many others are waiting or done."""

    def __init__(self, configs: Mapping[Path, RunConfig], console: Console | None = None) -> None:
        from rich.live import Live

        self._names = {
            folder.absolute(): f"{c.method} {c.benchmark}, seed {c.seeds.init}"
            for folder, c in configs.items()
        }
        self._table = Live(console=console or Console(stderr=True), transient=True)
        super().__init__(self._table, IF_STOPPED)

    def update(self, standings: Mapping[Path, Standing]) -> None:
        """Show the standing of all runs."""
        self._table.update(self.table(standings), refresh=True)

    def table(self, standings: Mapping[Path, Standing]) -> Table:
        """One row per run that is at work."""
        states = Counter(standing.state for standing in standings.values())
        told = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
        table = Table(box=None, pad_edge=False, caption=told, caption_justify="left")
        for column in ("run", "task", "on"):
            table.add_column(column)
        for folder, standing in standings.items():
            if standing.state == "running":
                at = f"{standing.task + 1}/{standing.tasks}"
                table.add_row(escape(self._names[folder]), at, standing.where)
        return table
