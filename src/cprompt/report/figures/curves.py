"""Accuracy over all classes seen, as tasks arrive."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cprompt.report import numbers
from cprompt.report.figures.layout import add_legend, new_figure, task_ticks
from cprompt.report.figures.style import INK, Style, styles_of_records
from cprompt.report.numbers import RecordsByLabel
from cprompt.research.metrics import seen_accuracy
from cprompt.research.record import Record


def accuracy_curves(series: RecordsByLabel) -> Figure:
    """Accuracy over all classes seen after each task; mean and range over each label's runs.

    An unfinished run is a thin dotted line of its own that ends where the run stopped; it is not
    part of any mean. A series that learnt all classes at once is a level line beside others.
    """
    figure, axes = new_figure(8.2, 4.1)
    longest = max((len(r.rows) for records in series.values() for r in records), default=1)
    lowest = 100.0
    styles = styles_of_records(series)
    for label, records in series.items():
        finished = [r for r in records if r.finished]
        unfinished = [r for r in records if r.rows and not r.finished]
        if finished:
            lowest = min(lowest, _draw_mean(axes, finished, label, styles[label], longest))
        for k, record in enumerate(unfinished):
            named = f"{label} (unfinished)" if not finished and k == 0 else None
            lowest = min(lowest, _draw_unfinished(axes, record, named, styles[label]))
    axes.set_xlabel("tasks learnt")
    axes.set_ylabel("accuracy over all classes seen, %")
    task_ticks(axes, range(1, longest + 1))
    axes.set_ylim(accuracy_axis_start(lowest), 100)
    axes.grid(alpha=0.18, color=INK)
    add_legend(figure)
    return figure


def accuracy_axis_start(lowest: float) -> float:
    """Where the accuracy axis starts: at 0, unless the lowest value is above 50."""
    return 0.0 if lowest <= 50 else math.floor((lowest - 5) / 10) * 10


def _draw_mean(
    axes: Axes, finished: Sequence[Record], label: str, style: Style, longest: int
) -> float:
    """Draw mean and range of finished runs; returns the lowest value."""
    found = numbers.curve(finished)
    x = np.arange(1, len(found.mean) + 1)
    several = len(finished) > 1
    if len(x) == 1 < longest:
        axes.axhline(found.mean[0], color=style.color, linestyle=(0, (6, 2)), label=label)
        if several:
            axes.axhspan(found.low[0], found.high[0], color=style.color, alpha=0.15, linewidth=0)
    else:
        axes.plot(
            x,
            found.mean,
            style.linestyle,
            marker=style.marker,
            markerfacecolor=style.face,
            color=style.color,
            label=label,
        )
        if several:
            axes.fill_between(x, found.low, found.high, color=style.color, alpha=0.2, linewidth=0)
    return float(found.low.min())


def _draw_unfinished(axes: Axes, record: Record, label: str | None, style: Style) -> float:
    """Draw one unfinished run, ending in a cross; returns its lowest value."""
    values = seen_accuracy(record.matrix())
    x = np.arange(1, len(values) + 1)
    axes.plot(
        x,
        values,
        ":",
        marker=style.marker,
        markerfacecolor=style.face,
        markersize=3,
        linewidth=1,
        color=style.color,
        zorder=5,
        label=label,
    )
    axes.plot(x[-1:], values[-1:], "x", markersize=8, color=style.color, zorder=5)
    return float(values.min())
