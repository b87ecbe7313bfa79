"""Loss terms over the whole stream."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cprompt.report import numbers
from cprompt.report.figures.layout import add_legend, new_panels, shared_labels
from cprompt.report.figures.style import INK, style_at
from cprompt.report.numbers import RecordsByLabel

MANY_EPOCHS = 60
"""With more epochs than this, points have no markers."""


def losses(series: RecordsByLabel) -> Figure:
    """Every loss term by epoch, tasks one after another; one panel per series that has losses.

    Each panel has its own scale: logarithmic where its values span more than a factor of thirty.
    """
    found = {k: c for k, rs in series.items() if (c := numbers.loss_curves(rs)) is not None}
    names = list(dict.fromkeys(name for curves in found.values() for name in curves.terms))
    figure, panels = new_panels(list(found), 3.25 if len(found) > 2 else 4.8, 2.4)
    for axes, curves in zip(panels, found.values(), strict=True):
        for name, values in curves.terms.items():
            style = style_at(names.index(name))
            axes.plot(
                curves.epochs,
                values,
                style.linestyle,
                color=style.color,
                linewidth=1.3,
                marker="." if len(curves.epochs) <= MANY_EPOCHS else None,
                markersize=4,
                label=name,
            )
        for end in curves.ends[:-1]:
            axes.axvline(end + 0.5, color=INK, alpha=0.3, linewidth=0.5)
        known = np.concatenate(list(curves.terms.values()))
        known = known[np.isfinite(known)]
        if known.size and known.min() > 0 and known.max() / known.min() > 30:
            axes.set_yscale("log")
            axes.tick_params(which="minor", colors=INK)
        axes.set_xlim(0.4, curves.ends[-1] + 0.6)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    shared_labels(figure, "epochs, tasks one after another", "loss")
    add_legend(figure, "upper")
    return figure
