"""`cprompt run`: one method over one benchmark."""

from __future__ import annotations

from pathlib import Path

import typer
import yaml
from rich.console import Console

from cprompt.cli import app
from cprompt.cli.arguments import TRACK, TakesSettings, parse_settings
from cprompt.cli.progress import ProgressBars
from cprompt.report.terminal import matrix_table, summary_table
from cprompt.research.config import resolve
from cprompt.research.experiment import run as run_experiment
from cprompt.research.tracking import Tracking, make_trackers
from cprompt.training.observers import Observers

STOPPED = "stopped; the same command with --resume goes on from the last checkpoint"


@app.command(
    cls=TakesSettings,
    epilog="Any setting by its dotted name: --training.epochs 5, --method.tau 1.2, "
    "--stream.tasks 20, --seeds.init 3, --evaluation.modes selected,given,first. "
    "`cprompt list settings` shows all of them; --dry-run shows what a run would use.",
)
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
        None, help="Local .safetensors or .pth file with the backbone's weights."
    ),
    seed: int | None = typer.Option(
        None, help="Sets the seeds of class order, initialisation and data alike."
    ),
    config: Path | None = typer.Option(None, help="YAML file with settings."),
    out: Path | None = typer.Option(None, help="Run folder; by default under runs/."),
    resume: bool = typer.Option(False, "--resume", help="Go on with the run in that folder."),
    track: list[str] = TRACK,
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the settings and stop."),
) -> None:
    """Learn a benchmark's tasks one after another and measure after each."""
    overrides = parse_settings(context.args)
    short = {
        "data.root": data,
        "backbone.name": backbone,
        "backbone.weights": weights,
        **dict.fromkeys(("seeds.order", "seeds.init", "seeds.data"), seed),
    }
    overrides = {k: v for k, v in short.items() if v is not None} | overrides
    settings = resolve(benchmark, method, flavour, file=config, overrides=overrides)
    console = Console()
    if dry_run:
        print(yaml.safe_dump(settings.to_dict(), sort_keys=False, allow_unicode=True), end="")
        return
    folder = out or settings.default_folder()
    with (
        Tracking(make_trackers(track, folder), settings) as tracking,
        ProgressBars(console=console, if_stopped=STOPPED) as bars,
    ):
        observer = Observers(bars, tracking)
        record = run_experiment(settings, folder, resume=resume, observer=observer)
    console.print(matrix_table(record, f"Accuracy in %, {method} on {benchmark}"))
    console.print(summary_table(record))
    console.print(
        f"record: {folder / 'record.json'}", markup=False, highlight=False, soft_wrap=True
    )
