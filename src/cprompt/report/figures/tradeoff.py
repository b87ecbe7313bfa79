"""Accuracy against what it costs, one point per method."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Mapping

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox

from cprompt.report.figures.layout import WIDTH, dress
from cprompt.report.figures.style import INK, Style, styles_of_labels

LEAST = 0.001
"""Costs below this are drawn at it: a logarithmic axis has no zero."""
MARKER = 8.0
"""Width of a point's marker, in typographic points."""
LONGEST = 18
"""Characters of a name in one line."""

Point = tuple[float, float]


def accuracy_against_cost(
    costs: Mapping[str, Mapping[str, float]],
    accuracy: Mapping[str, float | None],
) -> Figure:
    """One panel for each kind of cost, by its name; costs and accuracies by the label of a row.

    The method whose title begins a label decides its colour and marker. The upper left is best.
    Cost axes are logarithmic. A row whose cost of a kind is not known is left out of that panel.
    One without an accuracy is not drawn; the others look as they would beside it.
    """
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    FigureCanvasAgg(figure)  # measures text
    styles = styles_of_labels(list(accuracy))
    named: dict[Axes, dict[str, Point]] = {}
    for number, (kind, of) in enumerate(costs.items()):
        axes = figure.add_subplot(1, len(costs), number + 1)
        dress(axes)
        named[axes] = {
            label: (max(of[label], LEAST), percent)
            for label, percent in accuracy.items()
            if label in of and percent is not None
        }
        for label, point in named[axes].items():
            _draw_point(axes, label, point, styles[label])
        axes.margins(x=0.12, y=0.07)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(kind)
        if number == 0:
            axes.set_ylabel("accuracy after the last task, %")
        axes.grid(alpha=0.18, color=INK)
    figure.draw_without_rendering()  # places the axes
    for axes, points in named.items():
        _name_points(axes, points)
    return figure


def _draw_point(axes: Axes, label: str, point: Point, style: Style) -> None:
    axes.plot(
        *point,
        linestyle="none",
        marker=style.marker,
        markersize=MARKER,
        markerfacecolor=style.face,
        markeredgewidth=1.6 if style.hollow else 1.0,
        color=style.color,
        label=label,
    )


def _name_points(axes: Axes, points: Mapping[str, Point]) -> None:
    """Write each point's name as near to it as it covers no other point and no other name."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    scale = figure.dpi / 72
    inside = axes.get_window_extent()
    at = {label: axes.transData.transform(point) for label, point in points.items()}
    half = 0.62 * MARKER * scale
    taken = [Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in at.values()]
    for label in sorted(points, key=lambda one: -points[one][1]):
        text = axes.annotate(
            "\n".join(textwrap.wrap(label, LONGEST)).replace("$", r"\$"),
            points[label],
            xytext=(0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8.5,
            linespacing=1.0,
            color=INK,
            annotation_clip=False,
        )
        text.set_in_layout(False)
        size = text.get_window_extent()
        best = None
        for x, y in _offsets(size.width, size.height, half):
            box = size.translated(x, y)
            overlap = sum(_area(box, other) for other in taken)
            outside = box.width * box.height - _area(box, inside)
            cost = overlap + outside
            if best is None or cost < best[0] - 1e-6:
                best = (cost, x, y, box)
            if cost < 1e-6:
                break
        assert best is not None
        _, x, y, box = best
        text.set_position((x / scale, y / scale))
        text.set_multialignment("left" if x > half else "right" if x < -half else "center")
        taken.append(box)


def _offsets(width: float, height: float, half: float) -> Iterator[Point]:
    """From a point to the middle of its name, the nearest and most usual places first."""
    for gap in (3, 6, 10, 16):
        beside, over = half + gap + width / 2, half + gap + height / 2
        yield from ((beside, 0), (-beside, 0), (0, over), (0, -over))
        for side, up in itertools.product((1, -1), (1, -1)):
            yield side * beside, up * (half + height / 2) / 2
            yield side * (half + gap) * 0.9 + side * width / 2, up * over * 0.8
            yield side * width / 4, up * over


def _area(one: Bbox, other: Bbox) -> float:
    """Of what two boxes share."""
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(width, 0.0) * max(height, 0.0))
