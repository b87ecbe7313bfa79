"""Time, memory and parameters of a run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cprompt.report import numbers
from cprompt.report.figures.layout import WIDTH, dress, wrapped
from cprompt.report.figures.style import COLOURS, INK
from cprompt.report.numbers import RecordsByLabel
from cprompt.research.metrics import Floats

PARTS = ("preparation", "training", "waiting", "evaluation")
"""Order of the parts of a run; any others come after them."""


class _Panel(NamedTuple):
    """Bars of one quantity: for each part, one value per series."""

    name: str
    bars: dict[str, list[float]]
    stacked: bool = True


def costs(series: RecordsByLabel) -> Figure:
    """Bars of seconds by part, peak memory and parameters learnt; what no record has is left out.

    Parts of the time are stacked; the peaks of process and device are side by side.
    """
    panels = _known(series)
    figure = Figure(figsize=(WIDTH, 0.28 * len(series) + 1.4), layout="constrained")
    labels = [wrapped(label, 26) for label in series]
    for i, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), i + 1)
        dress(axes)
        _draw_bars(axes, panel)
        axes.set_xlabel(panel.name)
        axes.set_yticks(range(len(labels)), labels if i == 0 else [""] * len(labels))
        axes.invert_yaxis()
        axes.margins(y=0.02)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        if len(panel.bars) > 1:
            axes.legend(
                frameon=False,
                labelcolor=INK,
                fontsize=8,
                loc="lower left",
                bbox_to_anchor=(0, 1),
                ncols=2,
                borderaxespad=0.2,
                columnspacing=1,
                handlelength=1.2,
            )
    return figure


def any_costs(series: RecordsByLabel) -> bool:
    """Whether `costs` has anything to show."""
    return bool(_known(series))


def _known(series: RecordsByLabel) -> list[_Panel]:
    found = [numbers.measured_cost(records) for records in series.values()]
    named = {part for cost in found for part in cost.seconds}
    parts = [*(p for p in PARTS if p in named), *sorted(named.difference(PARTS))]
    places = [p for p in ("process", "device") if any(p in cost.memory for cost in found)]
    learnt = [cost.parameters.get("learnt", 0) for cost in found]
    panels = []
    if parts:
        by_part = {p: [cost.seconds.get(p, 0.0) for cost in found] for p in parts}
        panels.append(_Panel("seconds per run", by_part))
    if places:
        by_place = {p: [cost.memory.get(p, 0) / 2**30 for cost in found] for p in places}
        panels.append(_Panel("peak memory, GiB", by_place, stacked=False))
    if any(learnt):
        unit, name = (1e6, "millions") if max(learnt) >= 1e6 else (1e3, "thousands")
        panels.append(_Panel(f"parameters learnt, {name}", {"": [n / unit for n in learnt]}))
    return panels


def _draw_bars(axes: Axes, panel: _Panel) -> None:
    count = len(panel.bars)
    height = 0.8 if panel.stacked else 0.8 / count
    left: Floats | float = 0.0
    for k, (part, values) in enumerate(panel.bars.items()):
        y = np.arange(len(values)) + (0.0 if panel.stacked else (k - (count - 1) / 2) * height)
        axes.barh(y, values, height, left=left, color=COLOURS[k % len(COLOURS)], label=part)
        if panel.stacked:
            left = left + np.asarray(values)
