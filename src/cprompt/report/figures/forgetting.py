"""How much of each task was forgotten."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from cprompt.report import numbers
from cprompt.report.figures.layout import new_panels, shared_labels, task_ticks
from cprompt.report.figures.style import INK, styles_of_records
from cprompt.report.numbers import RecordsByLabel


def forgetting(series: RecordsByLabel) -> Figure:
    """Bars: best before the last task minus end, per task; ticks: just learnt minus end.

    One panel for each series of at least two tasks, all on one scale.
    """
    by_label = {label: numbers.forgetting_by_task(rs) for label, rs in series.items()}
    found = {label: drops for label, drops in by_label.items() if len(drops.end)}
    tasks = max(len(drops.end) for drops in found.values())
    styles = styles_of_records(series)
    width = max(2.4, min(0.26 * tasks + 1.0, 4.8))
    figure, panels = new_panels(list(found), width, 2.3, sharey=True)
    for (label, drops), axes in zip(found.items(), panels, strict=True):
        x = np.arange(1, len(drops.end) + 1)
        axes.bar(x, drops.forgetting, color=styles[label].color, width=0.72)
        since = drops.learnt - drops.end
        axes.plot(x, since, "_", color=INK, markersize=max(4, min(12, 160 / tasks)))
        axes.axhline(0, color=INK, linewidth=0.8)
        task_ticks(axes, range(1, tasks + 1), most=12)
        axes.grid(axis="y", alpha=0.18, color=INK)
    shared_labels(figure, "task", "points forgotten")
    return figure
