"""The demo's page: what continual learning does, and what forgetting looks like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL import Image

from cprompt.methods.registry import METHODS
from cprompt.report import figures, html
from cprompt.research import metrics
from cprompt.research.record import Record


@dataclass(frozen=True)
class Example:
    """A test image, its class, the task it came in, and what each method says after the last."""

    image: Image.Image
    task: int
    truth: str
    answers: Mapping[str, str]


def demo_page(records: Mapping[str, Record], examples: Sequence[Example], seconds: float) -> str:
    """`records` by method name: cprompt and finetune, on the same stream."""
    ours, plain = records["cprompt"], records["finetune"]
    stream = ours.stream
    last = {name: r.summary()["last_accuracy"] for name, r in records.items()}
    first_task = {name: _first_task(r) for name, r in records.items()}
    picked = ours.summary()["selection_accuracy"]
    backbone = ours.backbone
    return html.page(
        "cprompt demo",
        [
            html.text("h1", "A classifier that keeps learning"),
            html.text(
                "p",
                f"{stream.n_classes} classes of drawn images arrive in {stream.n_tasks} batches. "
                "Each batch is learnt without looking at any image of an earlier one. Both "
                "learners see the same images in the same order through the same frozen "
                "vision transformer; only what they do about the old classes differs.",
            ),
            html.row(
                html.number(f"{last['cprompt']:.1f} %", "CPrompt, all classes, at the end"),
                html.number(f"{last['finetune']:.1f} %", "fine-tuning, all classes, at the end"),
                html.number(
                    f"{first_task['cprompt'][0]:.0f} → {first_task['cprompt'][1]:.0f} %",
                    "CPrompt on the first batch: just learnt, and at the end",
                ),
                html.number(
                    f"{first_task['finetune'][0]:.0f} → {first_task['finetune'][1]:.0f} %",
                    "fine-tuning on the first batch: just learnt, and at the end",
                ),
            ),
            html.text("h2", "Accuracy as classes arrive"),
            html.row(
                html.figure(
                    figures.to_svg(
                        figures.accuracy_curves({METHODS.title(n): [r] for n, r in records.items()})
                    ),
                    "Accuracy over the test images of all classes seen so far.",
                )
            ),
            html.text("h2", "What is remembered"),
            html.text(
                "p",
                "A row is a moment, a column a batch: the accuracy on that batch's test images "
                "after learning up to that row, in percent. Read down a column to see a batch "
                "being forgotten.",
            ),
            html.row(
                html.figure(figures.to_svg(figures.accuracy_heatmap(ours)), "CPrompt"),
                html.figure(figures.to_svg(figures.accuracy_heatmap(plain)), "Fine-tuning"),
            ),
            html.text("h2", "Which prompt answered"),
            html.text(
                "p",
                "CPrompt keeps one small prompt a batch. For a new image it picks the prompt by "
                f"the nearest class key; at the end it picks the right one for {picked:.0f} % of "
                "the test images. A wrong prompt need not mean a wrong answer: the heads were "
                "trained under other batches' prompts too.",
            ),
            html.row(
                html.figure(
                    figures.to_svg(figures.prompt_picks(ours)),
                    "Of each batch's test images, the percentage answered with each prompt.",
                )
            ),
            html.text("h2", "Some test images, at the end"),
            html.text("p", "A column is a batch. ✓ right, ✗ wrong, after the last batch."),
            _strip(examples, stream.n_tasks),
            "<footer>"
            + html.text(
                "p",
                f"Backbone {backbone['name']} ({backbone['fingerprint'][:12]}), seeds "
                f"{_seeds(ours)}, {ours.images['train']} training and {ours.images['test']} "
                f"test images, {seconds:.0f} s on {ours.environment['cpu']} with "
                f"{ours.environment['cpu_count']} cores, torch {ours.environment['torch']}, "
                f"cprompt {ours.environment['cprompt']}.",
            )
            + "</footer>",
        ],
    )


def _first_task(record: Record) -> tuple[float, float]:
    """Accuracy on the first task, just learnt and at the end."""
    cells = metrics.accuracy_matrix(record.matrix())
    return float(cells[0, 0]), float(cells[-1, 0])


def _seeds(record: Record) -> str:
    return ", ".join(f"{name} {value}" for name, value in record.config["seeds"].items())


def _strip(examples: Sequence[Example], n_tasks: int) -> str:
    """Images in columns, one a batch; as many of each batch."""
    layout = (
        f"grid-template-columns: repeat({n_tasks}, minmax(7rem, 1fr)); "
        f"grid-template-rows: repeat({len(examples) // n_tasks}, auto)"
    )
    images = "".join(_example(e) for e in examples)
    return f'<div class="strip" style="{layout}">{images}</div>'


def _example(example: Example) -> str:
    lines = [(f"{example.truth} (batch {example.task + 1})", "")]
    for name, answer in example.answers.items():
        right = answer == example.truth
        mark = "✓" if right else "✗"
        lines.append((f"{mark} {METHODS.title(name)}: {answer}", "right" if right else "wrong"))
    return html.image(example.image.resize((128, 128), Image.Resampling.NEAREST), lines)
