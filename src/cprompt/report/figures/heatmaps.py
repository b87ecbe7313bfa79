"""Heat maps: accuracy by task, and which prompt answered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from cprompt.report import numbers
from cprompt.report.figures.layout import new_figure, new_panels, shared_labels
from cprompt.report.figures.style import INK
from cprompt.report.numbers import RecordsByLabel
from cprompt.research.metrics import Floats
from cprompt.research.record import Record

MOST_DIGITS = 1000
"""Most numbers that the heat maps of one figure show; with more, they show colours only."""

MOST_SQUARES = 20
"""Up to this many tasks, a heat map is drawn as squares; a larger one is one pixel per cell."""


def with_several_tasks(series: RecordsByLabel) -> RecordsByLabel:
    """The series of more than one task; all of them if there is none."""
    return {k: rs for k, rs in series.items() if rs[0].stream.n_tasks > 1} or series


def accuracy_heatmap(record: Record, mode: str = "selected") -> Figure:
    """a[i,j]: a row for each task learnt, a column for each task tested, on a scale 0 to 100."""
    cells = numbers.mean_matrix([record], mode)
    return _single(cells, "tested on task", "after learning task")


def accuracy_heatmaps(series: RecordsByLabel) -> Figure:
    """a[i,j] of every series, means over its runs, all on one scale from 0 to 100."""
    panels = {
        label: numbers.mean_matrix(records) for label, records in with_several_tasks(series).items()
    }
    return _panels(panels, "tested on task", "after learning task", "accuracy, %")


def prompt_picks(record: Record) -> Figure:
    """After the last task: of each task's test images, the share answered by each prompt."""
    found = numbers.pick_shares([record])
    assert found is not None
    shares, _ = found
    return _single(shares, "answered with the prompt of task", "images of task")


def prompt_pick_maps(series: RecordsByLabel) -> Figure:
    """`prompt_picks` of every series that selects, with how often the right prompt was picked."""
    panels = {}
    for label, records in series.items():
        found = numbers.pick_shares(records)
        if found is not None:
            panels[f"{label}\npicked right {found[1]:.1f} %"] = found[0]
    return _panels(panels, "answered with the prompt of task", "images of task", "images, %")


def _single(cells: Floats, below: str, beside: str) -> Figure:
    figure, axes = new_figure(0.52 * cells.shape[1] + 1.2, 0.42 * len(cells) + 1.0)
    _draw_cells(axes, cells, 9)
    axes.set_xlabel(below)
    axes.set_ylabel(beside)
    return figure


def _panels(panels: Mapping[str, Floats], below: str, beside: str, unit: str) -> Figure:
    """One heat map per label on one scale from 0 to 100, with one colour bar."""
    most = max(len(cells) for cells in panels.values())
    cell, size = (0.28, 8.0) if most <= 12 else (0.21, 6.0)
    if most > MOST_SQUARES:
        cell, size = 2.8 / most, 0.0
    written = sum(int(np.isfinite(cells).sum()) for cells in panels.values())
    if written > MOST_DIGITS:
        size = 0.0
    side = max(2.5, cell * most + 0.4)
    height = max(1.9, 0.9 * cell * most + 0.7)
    figure, drawn = new_panels(list(panels), side, height, beside=0.8)
    for axes, cells in zip(drawn, panels.values(), strict=True):
        _draw_cells(axes, cells, size)
    shared_labels(figure, below, beside)
    scale = ScalarMappable(Normalize(0, 100), "cividis")
    columns = len({round(axes.get_position().x0, 3) for axes in drawn})
    rows = math.ceil(len(drawn) / columns)
    bar = figure.colorbar(
        scale, ax=drawn, shrink=min(1.0, 2 / rows), aspect=25, pad=0.01, fraction=0.04
    )
    bar.ax.spines["outline"].set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=8)
    bar.set_label(unit, color=INK)
    return figure


def _draw_cells(axes: Axes, values: Floats, size: float) -> None:
    """A heat map from 0 to 100, empty where a value is NaN.

    size: of the numbers in the cells; 0 for none.
    """
    n_rows, n_columns = values.shape
    scale: dict[str, Any] = {"cmap": "cividis", "vmin": 0, "vmax": 100}
    if n_columns > MOST_SQUARES:
        axes.imshow(values, interpolation="none", aspect="auto", **scale)
    else:
        edges = np.arange(max(n_rows, n_columns) + 1) - 0.5
        mesh = (edges[: n_columns + 1], edges[: n_rows + 1], values)
        axes.pcolormesh(*mesh, edgecolors="face", linewidth=0.3, **scale)
        axes.invert_yaxis()
    if size:
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value):
                ink = "white" if value < 55 else "black"
                axes.text(j, i, f"{value:.0f}", ha="center", va="center", color=ink, fontsize=size)
    step = math.ceil(max(values.shape) / 20)
    for axis, count in ((axes.xaxis, n_columns), (axes.yaxis, n_rows)):
        axis.set_ticks(range(0, count, step), [str(t + 1) for t in range(0, count, step)])
    axes.tick_params(length=0, labelsize=9 if n_columns <= 12 else 7)
    for spine in axes.spines.values():
        spine.set_visible(False)
