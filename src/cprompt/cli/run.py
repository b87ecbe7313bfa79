"""`cprompt run`: one method over one benchmark."""

from __future__ import annotations

from pathlib import Path

import typer
import yaml
from rich.console import Console

from cprompt.cli.arguments import (
    PLUGINS,
    SETTINGS,
    TRACK,
    parse_settings,
    tell_of_unused_gpu,
)
from cprompt.cli.output import say
from cprompt.files import check_writable


def run(
    context: typer.Context,
    benchmark: str = typer.Argument(help="A benchmark, see `cprompt list benchmarks`."),
    method: str = typer.Option("cprompt", help="A method, see `cprompt list methods`."),
    flavour: str | None = typer.Option(
        None, help="A named set of the method's settings, such as official or matched."
    ),
    data: str | None = typer.Option(None, help="Folder of the dataset's images."),
    backbone: str | None = typer.Option(None, help="Frozen model, see `cprompt list backbones`."),
    weights: str | None = typer.Option(
        None, help="Local .safetensors or .pth file; one named after its model needs no --backbone."
    ),
    seed: int | None = typer.Option(
        None, help="One seed for class order, initialisation and data."
    ),
    config: Path | None = typer.Option(None, help="YAML file with settings."),
    out: Path | None = typer.Option(None, help="Run folder; by default under runs/."),
    resume: bool = typer.Option(False, "--resume", help="Continue the run in that folder."),
    track: list[str] = TRACK,
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the settings and stop."),
    settings: list[str] = SETTINGS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Learn a benchmark's tasks one after another and measure after each.

    Every setting has a dotted name: --method.tau 1.2, --stream.tasks 20,
    --seeds.init 3, --evaluation.modes selected,given,first.
    `cprompt list settings` shows all of them; --dry-run shows what a run uses.
    """
    overrides = parse_settings([*settings, *context.args])

    from cprompt.cli.progress import ProgressBars
    from cprompt.ranks import launched
    from cprompt.report.terminal import matrix_table, summary_table
    from cprompt.research.config import resolve
    from cprompt.research.experiment import run as run_experiment
    from cprompt.research.record import FILE
    from cprompt.research.tracking import Tracking, make_trackers
    from cprompt.training.observers import Observers
    from cprompt.vit.loading import model_named_by

    short = {
        "data.root": data,
        "backbone.name": backbone or (model_named_by(weights) if weights else None),
        "backbone.weights": weights,
        **dict.fromkeys(("seeds.order", "seeds.init", "seeds.data"), seed),
    }
    overrides = {k: v for k, v in short.items() if v is not None} | overrides
    resolved = resolve(benchmark, method, flavour, file=config, overrides=overrides)
    if dry_run:
        print(yaml.safe_dump(resolved.to_dict(), sort_keys=False, allow_unicode=True), end="")
        return
    ranks = launched()
    console = Console(quiet=not ranks.first)
    if ranks.first:
        tell_of_unused_gpu(resolved.execution.device)
    folder = out or resolved.default_folder()
    check_writable(folder / FILE)
    if_stopped = "stopped; the same command with --resume continues from the last checkpoint"
    with (
        Tracking(make_trackers(track if ranks.first else [], folder), resolved) as tracking,
        ProgressBars(console=console, if_stopped=if_stopped) as bars,
    ):
        observer = Observers(bars, tracking)
        record = run_experiment(resolved, folder, resume=resume, observer=observer)
    console.print(matrix_table(record, f"Accuracy in %, {method} on {benchmark}"))
    console.print(summary_table(record))
    say(f"record: {folder / FILE}", console=console)
