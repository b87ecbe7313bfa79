"""`cprompt doctor`: whether a dataset on disk is complete and sound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from cprompt.cli.arguments import PLUGINS, SETTINGS, parse_settings
from cprompt.errors import ConfigError
from cprompt.files import shown_path

if TYPE_CHECKING:
    from cprompt.data.doctor import Diagnosis, PerClass

_FILES_SHOWN = 10
_OPTIONS = "data.options."


def doctor(
    context: typer.Context,
    dataset: str = typer.Argument(
        help="A dataset, see `cprompt list datasets`, or a folder of class folders."
    ),
    path: Path | None = typer.Argument(None, help="The dataset's folder."),
    all_files: bool = typer.Option(False, "--all", help="Name every file, not the first ten."),
    workers: int = typer.Option(2, help="Threads that decode images."),
    settings: list[str] = SETTINGS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Decode every image of a dataset and say what is there, missing, corrupt or duplicated.

    Options of the dataset are settings: --data.options.split_train FILE.
    `cprompt list datasets` shows the folders that each dataset expects. Ends
    with status 1 if training would fail.
    """
    options = {}
    for name, value in parse_settings([*settings, *context.args]).items():
        if not name.startswith(_OPTIONS):
            raise ConfigError(
                f"doctor has no setting {name!r}",
                hint=f"it takes options of the dataset, as --{_OPTIONS}NAME VALUE",
            )
        options[name.removeprefix(_OPTIONS)] = value

    from rich.progress import Progress

    from cprompt.data.doctor import diagnose
    from cprompt.data.registry import DATASETS

    if path is None and dataset not in DATASETS and Path(dataset).is_dir():
        dataset, path = "folder", Path(dataset)

    console = Console()
    with Progress(console=console, transient=True) as bars:
        bar = bars.add_task("decoding", total=None)
        diagnosis = diagnose(
            dataset,
            path,
            workers=workers,
            progress=lambda done, total: bars.update(bar, completed=done, total=total),
            **options,
        )
    _print(console, diagnosis, None if all_files else _FILES_SHOWN)
    if not diagnosis.ok:
        raise typer.Exit(1)


def _print(console: Console, diagnosis: Diagnosis, show: int | None) -> None:
    def say(text: str) -> None:
        console.print(shown_path(text), highlight=False, soft_wrap=True)

    if diagnosis.counts is not None:
        c = diagnosis.counts
        split = diagnosis.test_per_class is not None
        images = f"{c.train:,} train, {c.test:,} test images" if split else f"{c.train:,} images"
        say(f"{escape(diagnosis.dataset)}: {images}, {c.classes} classes")
        for part, per_class in (
            ("train images" if split else "images", diagnosis.train_per_class),
            ("test images", diagnosis.test_per_class),
        ):
            if per_class is not None:
                say(f"{part} per class: {_spread(per_class)}")
    for problem in diagnosis.problems:
        colour = "red" if problem.severity == "error" else "yellow"
        say(f"[bold {colour}]{problem.severity}:[/] {escape(problem.message)}")
        for finding in problem.findings[:show]:
            say(f"    {escape(finding)}")
        if show is not None and len(problem.findings) > show:
            say(f"    and {len(problem.findings) - show} more; --all names them")
        say(f"  remedy: {escape(problem.hint)}")
    if not diagnosis.problems:
        say("[bold green]nothing wrong found[/]")


def _spread(per_class: PerClass) -> str:
    return f"{per_class.minimum} to {per_class.maximum}, median {per_class.median:g}"
