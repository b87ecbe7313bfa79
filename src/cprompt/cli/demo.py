"""`cprompt demo`: continual learning in about a minute, offline, on a laptop."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from cprompt.cli.output import say
from cprompt.files import check_writable, write_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cprompt.data.image_set import Dataset
    from cprompt.report.demo import Example
    from cprompt.research.record import Record
    from cprompt.vit.backbone import Backbone

LEARNERS = {
    "strata": "one pass, nothing forgotten",
    "cprompt": "a prompt per batch, trained to stay consistent",
    "finetune": "what one would otherwise do",
}
"""The methods of the demo, the one that `cprompt learn` uses first, in a few words each."""

QUICK = {
    "data.options": {"classes": 6, "train_per_class": 6, "test_per_class": 4},
    "stream.tasks": 3,
    "training.epochs": 2,
}
"""Enough to see that an installation works; the numbers mean little."""


def demo(
    out: Path = typer.Option(Path("demo"), help="Folder for the report and the runs."),
    seed: int = typer.Option(0, help="Seed of class order, initialisation and data."),
    quick: bool = typer.Option(
        False, "--quick", help="Six classes in three batches: a few seconds, to try the install."
    ),
) -> None:
    """Learn drawn classes batch by batch: in one pass, with CPrompt, and by fine-tuning.

    Takes about a minute on two cores and needs no download. A folder from
    an earlier demo is replaced.
    """
    report = out / "report.html"
    check_writable(report)

    from cprompt.cli.progress import ProgressBars
    from cprompt.methods.registry import METHODS
    from cprompt.report.demo import demo_page
    from cprompt.report.terminal import learners_table
    from cprompt.research.config import resolve
    from cprompt.research.experiment import run
    from cprompt.vit.loading import load_backbone

    start = time.monotonic()
    console = Console()
    overrides: dict[str, Any] = QUICK if quick else {}
    overrides = overrides | dict.fromkeys(("seeds.order", "seeds.init", "seeds.data"), seed)
    settings = {name: resolve("demo", name, overrides=overrides) for name in LEARNERS}
    first = next(iter(settings.values()))
    backbone = load_backbone(first.backbone.name, first.backbone.weights, first.backbone.image_size)
    dataset = first.data.load(seed)
    stream = first.stream.build(len(dataset.classes), seed)
    say(
        f"{len(dataset.classes)} classes of drawn images in {stream.n_tasks} batches; "
        "no image of an earlier batch is ever looked at again.",
        console=console,
    )
    records: dict[str, Record] = {}
    for name, about in LEARNERS.items():
        folder, began = out / name, time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        with ProgressBars(METHODS.title(name), console, lines=False) as bars:
            records[name] = run(
                settings[name], folder, observer=bars, dataset=dataset, backbone=backbone
            )
        seconds = time.monotonic() - began
        say(f"{METHODS.title(name):11} {about} ({seconds:.0f} s)", console=console)
    say("\nAccuracy in % over all classes seen, after each batch:", console=console)
    console.print(learners_table({METHODS.title(name): r for name, r in records.items()}))
    examples = _examples(dataset, records, backbone, out)
    page = demo_page(records, LEARNERS, examples, time.monotonic() - start)
    write_bytes(report, page.encode())
    last = {name: r.summary()["last_accuracy"] for name, r in records.items()}
    say(
        f"\nAfter all {stream.n_tasks} batches Strata answers {last['strata']:.1f} % of the test "
        f"images right, CPrompt {last['cprompt']:.1f} %, fine-tuning {last['finetune']:.1f} %.",
        f"Report: {report}",
        "\nNext, with your own images (one folder per class):",
        console=console,
    )
    for command in NEXT_COMMANDS:
        console.print(f"  {command}", style="bold", highlight=False, soft_wrap=True)


NEXT_COMMANDS = (
    "cprompt doctor IMAGES",
    "cprompt learn model IMAGES",
    "cprompt predict model PHOTO",
)


def _examples(
    dataset: Dataset, records: dict[str, Record], backbone: Backbone, out: Path, per_task: int = 3
) -> list[Example]:
    """Some test images per task, of different classes, with every method's final answer."""
    import numpy as np
    import torch

    from cprompt.data.pipeline import views
    from cprompt.report.demo import Example
    from cprompt.research.experiment import load_method

    stream = next(iter(records.values())).stream
    indices = np.concatenate(
        [
            _spread(stream.indices(dataset.test.labels, task), per_task)
            for task in range(stream.n_tasks)
        ]
    )
    chosen = dataset.test.subset(indices)
    device = next(backbone.parameters()).device
    answers: dict[str, list[str]] = {}
    for name, record in records.items():
        data = record.config["data"]
        preparation = views.build(data["transform"], backbone.image_size[0], data["normalization"])
        images = torch.stack([preparation.prepare(chosen.load(i)) for i in range(len(chosen))])
        method = load_method(out / name, backbone).to(device)
        with torch.inference_mode():
            positions = method(images.to(device)).argmax(-1).tolist()
        answers[name] = [dataset.classes[stream.order[p]] for p in positions]
    tasks = stream.task_of_position[stream.targets(chosen.labels)]
    return [
        Example(
            chosen.load(i),
            int(tasks[i]),
            dataset.classes[chosen.labels[i]],
            {name: named[i] for name, named in answers.items()},
        )
        for i in range(len(chosen))
    ]


def _spread(indices: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """`count` of the indices, far apart: images are sorted by class."""
    import numpy as np

    at = np.linspace(0, len(indices) - 1, count).round().astype(int)
    chosen: NDArray[np.int64] = indices[at]
    return chosen
