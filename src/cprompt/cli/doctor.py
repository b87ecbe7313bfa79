"""`cprompt doctor`: whether a dataset on disk is complete and sound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from cprompt.cli import label_page
from cprompt.cli.arguments import DEVICE, MOVED_WEIGHTS, PLUGINS, SETTINGS, parse_settings
from cprompt.cli.output import say
from cprompt.errors import ConfigError, counted
from cprompt.files import check_writable, shown_path, write_bytes

if TYPE_CHECKING:
    from cprompt.classifier.classifier import ContinualClassifier
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
    model: Path | None = typer.Option(
        None, help="A model folder: also look for photos in the wrong class; for class folders."
    ),
    report: Path | None = typer.Option(
        None, metavar="FILE.html", help="With --model: one page with the photos in question."
    ),
    workers: int = typer.Option(2, help="Threads that decode images."),
    device: str = DEVICE,
    weights: str | None = MOVED_WEIGHTS,
    settings: list[str] = SETTINGS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Decode every image of a dataset and say what is there, missing, corrupt or duplicated.

    Options of the dataset are settings: --data.options.split_train FILE.
    `cprompt list datasets` shows the folders that each dataset expects. Ends
    with status 1 if training would fail. With --model, photos are also listed
    that the model would put into another class, had it not learnt them.
    """
    if report is not None and model is None:
        raise ConfigError("--report needs a model to judge labels", hint="add --model MODEL")
    if report is not None:
        check_writable(report)
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
    if model is not None and (dataset != "folder" or path is None):
        raise ConfigError(
            f"--model judges photos in class folders, not the dataset {dataset!r}",
            hint="give a folder with one folder of photos per class",
        )

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
        if model is not None:
            say("labels are judged once the errors are corrected", console=console)
        raise typer.Exit(1)
    if model is not None:
        assert path is not None
        classifier = _load(model, device, weights)
        _judge(console, classifier, path, diagnosis, None if all_files else _FILES_SHOWN, report)


def _load(model: Path, device: str, weights: str | None) -> ContinualClassifier:
    from cprompt.classifier.classifier import ContinualClassifier

    return ContinualClassifier.load(model, device=device, weights=weights)


def _judge(
    console: Console,
    classifier: ContinualClassifier,
    folder: Path,
    diagnosis: Diagnosis,
    show: int | None,
    report: Path | None,
) -> None:
    """Print, and write to `report`, which labels are in doubt."""
    from cprompt.classifier.label_check import check_labels
    from cprompt.classifier.photo_sources import labelled
    from cprompt.cli.progress import ProgressBars

    photos, names = labelled(folder)
    files = [Path(str(photo)) for photo in photos]
    with ProgressBars(console=Console(stderr=True), lines=False) as bars:
        check = check_labels(classifier, files, names, bars)
    say(*label_page.lines(check, files, show), console=console)
    if report is not None:
        alike = [
            group
            for problem in diagnosis.problems
            if problem.kind == "alike"
            for group in problem.findings
        ]
        write_bytes(report, label_page.page(check, files, alike, folder).encode())
        say(f"written: {report}", console=console)


def _print(console: Console, diagnosis: Diagnosis, show: int | None) -> None:
    def tell(text: str) -> None:
        console.print(shown_path(text), highlight=False, soft_wrap=True)

    if diagnosis.counts is not None:
        c = diagnosis.counts
        split = diagnosis.test_per_class is not None
        images = (
            f"{c.train:,} train, {counted(c.test, 'test image')}"
            if split
            else counted(c.train, "image")
        )
        tell(f"{escape(diagnosis.dataset)}: {images}, {counted(c.classes, 'class')}")
        for part, per_class in (
            ("train images" if split else "images", diagnosis.train_per_class),
            ("test images", diagnosis.test_per_class),
        ):
            if per_class is not None:
                tell(f"{part} per class: {_spread(per_class)}")
    for problem in diagnosis.problems:
        colour = "red" if problem.severity == "error" else "yellow"
        tell(f"[bold {colour}]{problem.severity}:[/] {escape(problem.message)}")
        for finding in problem.findings[:show]:
            tell(f"    {escape(finding)}")
        if show is not None and len(problem.findings) > show:
            tell(f"    and {len(problem.findings) - show} more; --all names them")
        tell(f"  remedy: {escape(problem.hint)}")
    if not diagnosis.problems:
        tell("[bold green]nothing wrong found[/]")


def _spread(per_class: PerClass) -> str:
    return f"{per_class.minimum} to {per_class.maximum}, median {per_class.median:g}"
