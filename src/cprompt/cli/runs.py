"""Many runs, here or on Ray, one after another or together; finished ones are left alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
    from cprompt.data.image_set import Dataset
    from cprompt.research.config import BackboneConfig, RunConfig
    from cprompt.research.standing import Standing
    from cprompt.training.observers import Observer
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
    together: int = 1,
    plugins: Sequence[str] = (),
    may_diverge: bool = False,
) -> None:
    """Run or resume what is not finished, each run into its folder.

    Without `on`, in this process, `together` at a time; otherwise on Ray, see
    `cprompt.cluster.connection.connected`. The results are the same: bit for bit on a CPU with
    `cpus_per_run` threads. With `may_diverge`, a run whose loss becomes infinite is told, its
    record says so, and the others go on.
    """
    if on is not None and together > 1:
        raise ConfigError(
            "--together is for runs in this process, not --on", hint="use one of them"
        )
    from cprompt.cluster.runs import is_finished
    from cprompt.research.record import FILE

    missing = {folder: config for folder, config in configs.items() if not is_finished(folder)}
    for folder in missing:
        check_writable(folder / FILE)
    if on is None:
        if together > 1 and len(missing) > 1:
            _run_together(missing, track, may_diverge, together)
        else:
            _run_one_by_one(missing, track, may_diverge)
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


@dataclass
class _Loaded:
    """Backbones and datasets, each loaded once."""

    backbones: dict[BackboneConfig, Backbone] = field(default_factory=dict)
    datasets: dict[str, Dataset] = field(default_factory=dict)

    def backbone(self, config: RunConfig) -> Backbone:
        wanted = config.backbone
        if wanted not in self.backbones:
            self.backbones[wanted] = _new_backbone(config)
        return self.backbones[wanted]

    def dataset(self, config: RunConfig) -> Dataset:
        key = repr((config.data, config.seeds.data if config.data.validation else None))
        if key not in self.datasets:
            self.datasets[key] = config.data.load(config.seeds.data)
        return self.datasets[key]


def _new_backbone(config: RunConfig) -> Backbone:
    from cprompt.vit.loading import load_backbone

    wanted = config.backbone
    return load_backbone(wanted.name, wanted.weights, wanted.image_size)


def _run_one_by_one(
    missing: Mapping[Path, RunConfig], track: Sequence[str], may_diverge: bool
) -> None:
    from cprompt.cli.progress import ProgressBars
    from cprompt.research.experiment import run
    from cprompt.research.tracking import Tracking, make_trackers
    from cprompt.training.observers import Observers

    console, loaded = Console(stderr=True), _Loaded()
    for number, (folder, config) in enumerate(missing.items(), start=1):
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
                    dataset=loaded.dataset(config),
                    backbone=loaded.backbone(config),
                )
            except ConfigError as error:
                if not (may_diverge and _diverged(folder)):
                    raise
                bars.noticed(f"{label}: {error.message}")


def _run_together(
    missing: Mapping[Path, RunConfig], track: Sequence[str], may_diverge: bool, together: int
) -> None:
    """Several at a time; one that fails does not stop the others, and is told at the end."""
    from cprompt.device import pick_device
    from cprompt.research.experiment import run
    from cprompt.research.standing import Standing, TellsStanding
    from cprompt.research.together import run_together
    from cprompt.research.tracking import Tracking, make_trackers
    from cprompt.training.observers import Observers

    device = pick_device(next(iter(missing.values())).execution.device)
    loaded, live = _Loaded(), LiveTable(missing)
    standings = {folder.absolute(): Standing() for folder in missing}

    def tell(folder: Path, standing: Standing) -> None:
        standings[folder.absolute()] = standing
        live.update(standings)

    def start(folder: Path, config: RunConfig, turns: Observer) -> None:
        shown = TellsStanding(partial(tell, folder), str(device), partial(live.warn, folder))
        try:
            with Tracking(make_trackers(list(track), folder), config) as tracking:
                record = run(
                    config,
                    folder,
                    resume=True,
                    observer=Observers(shown, tracking, turns),
                    dataset=loaded.dataset(config),
                    backbone=_new_backbone(config),
                )
        except Exception:
            tell(folder, Standing("failed"))
            raise
        record.environment["together"] = together
        record.save(folder)
        tell(folder, Standing("finished"))

    with live:
        runs = {folder: partial(start, folder, config) for folder, config in missing.items()}
        failed = run_together(runs, together, device)
    for folder, error in failed.items():
        if not (may_diverge and isinstance(error, ConfigError) and _diverged(folder)):
            raise error


def backbone_settings(backbone: str | None, weights: str | None) -> dict[str, str]:
    """The settings that --backbone and --weights stand for; a file may be named after its model."""
    from cprompt.vit.loading import model_named_by

    named = model_named_by(weights) if weights else None
    given = {"backbone.name": backbone or named, "backbone.weights": weights}
    return {name: value for name, value in given.items() if value is not None}


def data_roots(benchmarks: Sequence[str], data: Sequence[str]) -> dict[str, str]:
    """The folder of each benchmark's images, from FOLDER or DATASET=FOLDER.

    A folder of a dataset that no benchmark here uses is passed over, so that one line of options
    serves every table.
    """
    from cprompt.data.registry import DATASETS

    dataset_of = {b: str(benchmark_recipe(b)["data"]["dataset"]) for b in benchmarks}
    given: dict[str, str] = {}
    for entry in data:
        dataset, equals, folder = entry.partition("=")
        if equals and dataset in DATASETS:
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

    def warn(self, folder: Path, message: str) -> None:
        """Leave a line that stays about one of the runs."""
        self._table.console.print(
            f"[bold yellow]warning:[/] {escape(f'{self._names[folder.absolute()]}: {message}')}",
            highlight=False,
            soft_wrap=True,
        )

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
