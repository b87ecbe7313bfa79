"""Accuracy against what it costs, one point per method."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from cprompt.report.figures.layout import WIDTH, add_legend, dress
from cprompt.report.figures.style import INK, style_at

LEAST = 0.001
"""Costs below this are drawn at it: a logarithmic axis has no zero."""


def accuracy_against_cost(
    costs: Mapping[str, Mapping[str, float]], accuracy: Mapping[str, float | None]
) -> Figure:
    """One panel for each kind of cost, by its name; costs and accuracies by the label of a method.

    The upper left is best. Cost axes are logarithmic. A method whose cost of a kind is not known
    is left out of that panel. One without an accuracy is not drawn, but its colour and marker stay
    its own: figures of the same methods look alike.
    """
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    places = {label: style_at(i) for i, label in enumerate(accuracy)}
    named: set[str] = set()
    for number, (kind, of) in enumerate(costs.items()):
        axes = figure.add_subplot(1, len(costs), number + 1)
        dress(axes)
        for label, percent in accuracy.items():
            if label in of and percent is not None:
                style = places[label]
                axes.plot(
                    max(of[label], LEAST),
                    percent,
                    linestyle="none",
                    marker=style.marker,
                    markersize=8,
                    color=style.color,
                    label=None if label in named else label,
                )
                named.add(label)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(kind)
        if number == 0:
            axes.set_ylabel("accuracy after the last task, %")
        axes.grid(alpha=0.18, color=INK)
    add_legend(figure)
    return figure
