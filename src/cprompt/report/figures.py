"""Figures of records. Each returns a matplotlib figure; nothing is drawn on a screen."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from cprompt import metrics
from cprompt.record import Record

# Okabe and Ito's colours, which people with any common colour blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#777777")
MARKERS = "osD^vPX*"
INK = "#010203"
"""Stands for the page's own text colour; `to_svg` puts it in."""


NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""Takes out what matplotlib would say of itself; it names addresses, and figures should not."""


def accuracy_curves(series: Mapping[str, Sequence[Record]]) -> Figure:
    """Accuracy over all classes seen after each task; mean and range over each label's runs."""
    figure, axes = _new(6.4, 3.6)
    longest = 0
    for i, (label, records) in enumerate(series.items()):
        runs = np.stack([metrics.seen_accuracy(r.matrix()) for r in records])
        x = np.arange(1, runs.shape[1] + 1)
        longest = max(longest, len(x))
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(x, runs.mean(0), marker=MARKERS[i % len(MARKERS)], color=colour, label=label)
        if len(runs) > 1:
            axes.fill_between(x, runs.min(0), runs.max(0), color=colour, alpha=0.2, linewidth=0)
    axes.set_xlabel("tasks learnt")
    axes.set_ylabel("accuracy over all classes seen, %")
    axes.set_xticks(range(1, longest + 1))
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.25, color=INK)
    axes.legend(frameon=False, labelcolor=INK)
    return figure


def accuracy_heatmap(record: Record, mode: str = "selected") -> Figure:
    """a[i,j]: a row for each task learnt, a column for each task tested, on a scale 0 to 100."""
    cells = metrics.accuracy_matrix(record.matrix(mode))
    figure, axes = _new(0.52 * cells.shape[1] + 1.2, 0.42 * len(cells) + 1.0)
    _cells(axes, cells, "{:.0f}")
    axes.set_xlabel("tested on task")
    axes.set_ylabel("after learning task")
    return figure


def prompt_picks(record: Record) -> Figure:
    """After the last task: of each task's test pictures, the share answered by each prompt."""
    picks = np.asarray(record.rows[-1].picks, dtype=float)
    share = 100 * picks / picks.sum(1, keepdims=True)
    figure, axes = _new(0.52 * len(share) + 1.2, 0.42 * len(share) + 1.0)
    _cells(axes, share, "{:.0f}")
    axes.set_xlabel("answered with the prompt of task")
    axes.set_ylabel("pictures of task")
    return figure


def to_svg(figure: Figure) -> str:
    """The figure as an <svg> element without a background, in the text colour around it."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cprompt"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=NO_METADATA)
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :].replace(INK, "currentColor")


def _new(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.tick_params(colors=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    for side, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(side in ("left", "bottom"))
    return figure, axes


def _cells(axes: Axes, values: NDArray[np.float64], form: str) -> None:
    """A heat map from 0 to 100 with the numbers in it; empty where a value is NaN."""
    axes.imshow(values, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            ink = "white" if value < 55 else "black"
            axes.text(j, i, form.format(value), ha="center", va="center", color=ink, fontsize=9)
    axes.set_xticks(range(values.shape[1]), [str(j + 1) for j in range(values.shape[1])])
    axes.set_yticks(range(values.shape[0]), [str(i + 1) for i in range(values.shape[0])])
    for spine in axes.spines.values():
        spine.set_visible(False)
