"""The demo's page: what continual learning does, and what forgetting looks like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from cprompt.methods.registry import METHODS
from cprompt.report import figures, html
from cprompt.research import metrics
from cprompt.research.record import Record


@dataclass(frozen=True)
class Example:
    """A test image, its class and task, and each method's answer after the last task."""

    image: Image.Image
    task: int
    truth: str
    answers: Mapping[str, str]


def demo_page(
    records: Mapping[str, Record],
    about: Mapping[str, str],
    examples: Sequence[Example],
    seconds: float,
) -> str:
    """The page as HTML.

    records: by method name, on the same stream, in the order in which they are shown; one is
    `cprompt`. about: each method in a few words. examples: as many of each task, tasks in order.
    seconds: how long the demo took.
    """
    ours = records["cprompt"]
    curves = figures.accuracy_curves({METHODS.title(n): [r] for n, r in records.items()})
    return html.render(
        "demo",
        title="cprompt demo",
        n_classes=ours.stream.n_classes,
        n_tasks=ours.stream.n_tasks,
        learners=[_learner(name, about[name], record) for name, record in records.items()],
        curves=html.drawing(figures.to_svg(curves, "curves")),
        picks=html.drawing(figures.to_svg(figures.prompt_picks(ours), "picks")),
        picked=ours.summary()["selection_accuracy"],
        examples=[_shown(example) for example in examples],
        made_by=_made_by(ours, seconds),
    )


def _learner(name: str, about: str, record: Record) -> dict[str, Any]:
    """What the page shows of one method; `first_task`: just learnt, and at the end."""
    cells = metrics.accuracy_matrix(record.matrix())
    return {
        "title": METHODS.title(name),
        "about": about,
        "last": record.summary()["last_accuracy"],
        "first_task": (float(cells[0, 0]), float(cells[-1, 0])),
        "heatmap": html.drawing(figures.to_svg(figures.accuracy_heatmap(record), name)),
    }


def _shown(example: Example) -> tuple[str, list[tuple[str, str]]]:
    """The image as an address, and the lines below it with their classes."""
    lines = [(f"{example.truth} (batch {example.task + 1})", "")]
    for name, answer in example.answers.items():
        right = answer == example.truth
        mark = "✓" if right else "✗"
        lines.append((f"{mark} {METHODS.title(name)}: {answer}", "right" if right else "wrong"))
    return html.png_address(example.image.resize((128, 128), Image.Resampling.NEAREST)), lines


def _made_by(record: Record, seconds: float) -> str:
    """What the numbers depend on, in one sentence."""
    backbone, about = record.backbone, record.environment
    seeds = ", ".join(f"{name} {value}" for name, value in record.config["seeds"].items())
    return (
        f"Backbone {backbone['name']} ({backbone['fingerprint'][:12]}), seeds {seeds}, "
        f"{record.images['train']} training and {record.images['test']} test images, "
        f"{seconds:.0f} s on {about['cpu']} with {about['cpu_count']} cores, "
        f"torch {about['torch']}, cprompt {about['cprompt']}."
    )
