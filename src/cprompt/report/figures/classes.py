"""Accuracy class by class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cprompt.report import numbers
from cprompt.report.figures.layout import new_panels, shared_labels, task_ticks
from cprompt.report.figures.style import INK, styles_of_records
from cprompt.report.numbers import RecordsByLabel
from cprompt.research.metrics import Floats

FEW_CLASSES = 60
"""Up to this many classes, each is drawn as a dot; more are drawn as distributions."""


def class_accuracy(series: RecordsByLabel) -> Figure:
    """Accuracy of every class at the end, by the task it came in; one panel per series.

    Up to FEW_CLASSES classes, each run has one dot per class, best first within its task. More
    are one box per task over all runs: quartiles, median, and whiskers to the extremes.
    """
    by_run = {k: [numbers.class_accuracy_by_task(r) for r in rs] for k, rs in series.items()}
    streams = [records[0].stream for records in series.values()]
    n_classes, n_tasks = streams[0].n_classes, max(s.n_tasks for s in streams)
    few = n_classes <= FEW_CLASSES
    width = 0.11 * n_classes + 1.0 if few else 0.24 * n_tasks + 0.9
    figure, panels = new_panels(list(series), max(3.1, min(width, 5.0)), 2.4, sharey=True)
    styles = styles_of_records(series)
    draw = _draw_dots if few else _draw_boxes
    for (label, runs), axes in zip(by_run.items(), panels, strict=True):
        draw(axes, runs, styles[label].color)
        axes.set_ylim(-4, 104)
        axes.grid(axis="y", alpha=0.18, color=INK)
    shared_labels(figure, "classes, by task", "accuracy at the end, %")
    return figure


def _draw_dots(axes: Axes, runs: Sequence[Sequence[Floats]], colour: str) -> None:
    starts = np.cumsum([0, *(max(len(run[task]) for run in runs) for task in range(len(runs[0])))])
    for run in runs:
        for start, values in zip(starts, run, strict=False):
            x = start + np.arange(len(values))
            axes.plot(x, values, "o", color=colour, markersize=4, alpha=0.7, markeredgewidth=0)
    for edge in starts[1:-1]:
        axes.axvline(edge - 0.5, color=INK, alpha=0.35, linewidth=0.6)
    middles = (starts[:-1] + starts[1:] - 1) / 2
    axes.set_xlim(-0.8, starts[-1] - 0.2)
    step = math.ceil(len(middles) / 20)
    axes.set_xticks(middles[::step], [str(t + 1) for t in range(0, len(middles), step)])
    axes.tick_params(axis="x", length=0)


def _draw_boxes(axes: Axes, runs: Sequence[Sequence[Floats]], colour: str) -> None:
    pooled = [np.concatenate([run[task] for run in runs]) for task in range(len(runs[0]))]
    axes.boxplot(
        pooled,
        positions=range(1, len(pooled) + 1),
        widths=0.65,
        whis=(0, 100),
        showfliers=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": colour, "alpha": 0.6, "linewidth": 0},
        whiskerprops={"color": colour},
        capprops={"color": colour},
        medianprops={"color": INK, "linewidth": 1.4},
    )
    axes.set_xlim(0.3, len(pooled) + 0.7)
    task_ticks(axes, range(1, len(pooled) + 1), most=12)
