"""What figures share: axes, panels, ticks, labels and legends that fit on a page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cprompt.report.figures.style import INK

WIDTH = 10.5
"""Width of a page, in inches."""


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; width and height in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    dress(axes)
    return figure, axes


def new_panels(
    labels: Sequence[str],
    width: float,
    height: float,
    *,
    sharey: bool = False,
    beside: float = 0.0,
) -> tuple[Figure, list[Axes]]:
    """One panel per label, titled with it; as many side by side as the page has room for.

    width, height: of one panel, in inches. beside: inches left for something on the right.
    """
    columns = min(len(labels), max(1, int((WIDTH - beside) / width)))
    rows = math.ceil(len(labels) / columns)
    size = (columns * width + 0.4 + beside, rows * height + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    panels: list[Axes] = []
    for i, label in enumerate(labels):
        axes = figure.add_subplot(rows, columns, i + 1, sharey=panels[0] if i and sharey else None)
        dress(axes)
        title = wrapped(label, int(width * 11))
        axes.set_title(title, color=INK, fontsize=10, loc="left")
        if sharey and i % columns:
            axes.tick_params(labelleft=False)
        panels.append(axes)
    return figure, panels


def dress(axes: Axes) -> None:
    """Draw in the text colour, without a frame, and with the grid behind the data."""
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    for side, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(side in ("left", "bottom"))


def task_ticks(axes: Axes, tasks: Sequence[int], most: int = 20) -> None:
    """Ticks at the tasks; every second, third and so on where there are more than `most`."""
    step = math.ceil(len(tasks) / most) or 1
    axes.set_xticks(list(tasks)[::step])


def shared_labels(figure: Figure, below: str, beside: str) -> None:
    """Axis labels for all panels together."""
    figure.supxlabel(below, color=INK, fontsize=10)
    figure.supylabel(beside, color=INK, fontsize=10)


def add_legend(figure: Figure, where: str = "lower") -> None:
    """One entry per label of any panel, outside the panels: `lower` or `upper`."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    labels = [wrapped(label, 44) for label in handles]
    longest = max(len(line) for label in labels for line in label.splitlines())
    columns = min(len(labels), max(1, int(figure.get_figwidth() / (0.085 * longest + 0.55))))
    lines = max(len(label.splitlines()) for label in labels)
    figure.set_figheight(figure.get_figheight() + 0.19 * lines * math.ceil(len(labels) / columns))
    figure.legend(
        handles.values(),
        labels,
        loc=f"outside {where} center",
        ncols=columns,
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )


def wrapped(label: str, width: int) -> str:
    """The label in lines of at most `width` characters; a dollar sign is not mathematics."""
    lines = [part for line in label.splitlines() for part in textwrap.wrap(line, width)]
    return "\n".join(lines).replace("$", r"\$")
