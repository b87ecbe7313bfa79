"""Figures of records. Each returns a matplotlib figure; nothing is drawn on a screen.

Most take series: labels and the runs of each, in the order that decides colours and markers.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cprompt.report import numbers
from cprompt.research.metrics import Floats, seen_accuracy
from cprompt.research.record import Record

# Okabe and Ito's colours, which people with any common colour blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#777777")
MARKERS = "osD^vPX*"
LINES = ("-", "--", "-.", ":")
INK = "#010203"
"""Stands for the page's own text colour; `to_svg` puts it in."""


NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""Takes out what matplotlib would say of itself; it names addresses, and figures should not."""

WIDTH = 10.5
"""Inches that a page has for a figure."""

FEW_CLASSES = 60
"""Up to so many classes each is a dot; more are shown as distributions."""

MOST_DIGITS = 1000
"""Up to so many numbers are written into the heat maps of one figure."""

MOST_SQUARES = 20
"""Up to so many tasks a heat map is drawn; larger ones are an image of a pixel a cell."""

Series = Mapping[str, Sequence[Record]]


class Style(NamedTuple):
    """How a series looks: no two of the first 32 alike, even without colours."""

    color: str
    marker: str
    linestyle: str


def style(index: int) -> Style:
    """The style of the series at that place."""
    turn, place = divmod(index, len(COLOURS))
    marker = MARKERS[(place + 3 * turn) % len(MARKERS)]
    return Style(COLOURS[place], marker, LINES[turn % len(LINES)])


def of_tasks(series: Series) -> Series:
    """Those that learnt several tasks; all, where none did."""
    return {k: rs for k, rs in series.items() if rs[0].stream.n_tasks > 1} or series


def _colour(series: Series, label: str) -> str:
    return style(list(series).index(label)).color


# --- accuracy over time -------------------------------------------------------------------------


def accuracy_curves(series: Series) -> Figure:
    """Accuracy over all classes seen after each task; mean and range over each label's runs.

    A run under way is a thin dotted line of its own, as far as it got, and in no mean. A series
    that saw all classes at once is a level line beside others that did not.
    """
    figure, axes = _new(8.2, 4.1)
    longest = max((len(r.rows) for runs in series.values() for r in runs), default=1)
    lowest = 100.0
    for i, (label, records) in enumerate(series.items()):
        colour, marker, line = style(i)
        named: str | None = label
        finished = [r for r in records if r.finished]
        if finished:
            found = numbers.curve(finished)
            lowest = min(lowest, found.low.min())
            x = np.arange(1, len(found.mean) + 1)
            if len(x) == 1 < longest:
                axes.axhline(found.mean[0], color=colour, linestyle=(0, (6, 2)), label=named)
                if len(finished) > 1:
                    axes.axhspan(found.low[0], found.high[0], color=colour, alpha=0.15, linewidth=0)
            else:
                axes.plot(x, found.mean, line, marker=marker, color=colour, label=named)
                if len(finished) > 1:
                    axes.fill_between(
                        x, found.low, found.high, color=colour, alpha=0.2, linewidth=0
                    )
            named = None
        for record in records:
            if record.rows and not record.finished:
                values = seen_accuracy(record.matrix())
                lowest = min(lowest, values.min())
                x = np.arange(1, len(values) + 1)
                thin: dict[str, Any] = {"color": colour, "zorder": 5}
                axes.plot(x, values, ":", marker=marker, markersize=3, linewidth=1, **thin)
                axes.plot(x[-1:], values[-1:], "x", markersize=8, **thin)
                if named:
                    axes.lines[-2].set_label(f"{named} (unfinished)")
                    named = None
    axes.set_xlabel("tasks learnt")
    axes.set_ylabel("accuracy over all classes seen, %")
    _task_ticks(axes, range(1, longest + 1))
    axes.set_ylim(lowest_shown(lowest), 100)
    axes.grid(alpha=0.18, color=INK)
    _legend(figure)
    return figure


def lowest_shown(lowest: float) -> float:
    """Where the accuracy axis begins: 0, unless every value is far from it."""
    return 0.0 if lowest <= 50 else math.floor((lowest - 5) / 10) * 10


def accuracy_heatmap(record: Record, mode: str = "selected") -> Figure:
    """a[i,j]: a row for each task learnt, a column for each task tested, on a scale 0 to 100."""
    cells = numbers.mean_matrix([record], mode)
    figure, axes = _new(0.52 * cells.shape[1] + 1.2, 0.42 * len(cells) + 1.0)
    _cells(axes, cells, 9)
    axes.set_xlabel("tested on task")
    axes.set_ylabel("after learning task")
    return figure


def accuracy_heatmaps(series: Series) -> Figure:
    """a[i,j] of every series, means over its runs, all on one scale from 0 to 100."""
    panels = {label: numbers.mean_matrix(records) for label, records in of_tasks(series).items()}
    return _heatmaps(panels, "tested on task", "after learning task", "accuracy, %")


# --- prompts ------------------------------------------------------------------------------------


def prompt_picks(record: Record) -> Figure:
    """After the last task: of each task's test images, the share answered by each prompt."""
    found = numbers.pick_shares([record])
    assert found is not None
    shares, _ = found
    figure, axes = _new(0.52 * len(shares) + 1.2, 0.42 * len(shares) + 1.0)
    _cells(axes, shares, 9)
    axes.set_xlabel("answered with the prompt of task")
    axes.set_ylabel("images of task")
    return figure


def prompt_pick_maps(series: Series) -> Figure:
    """`prompt_picks` of every series that selects, with how often the right prompt was picked."""
    panels = {}
    for label, records in series.items():
        found = numbers.pick_shares(records)
        if found is not None:
            panels[f"{label}\npicked right {found[1]:.1f} %"] = found[0]
    return _heatmaps(panels, "answered with the prompt of task", "images of task", "images, %")


# --- tasks and classes --------------------------------------------------------------------------


def forgetting(series: Series) -> Figure:
    """Bars: best before the last task minus end, by task; ticks: right after learning minus end.

    One panel for each series of at least two tasks, all on one scale.
    """
    by_label = {label: numbers.forgetting_by_task(rs) for label, rs in series.items()}
    found = {label: drops for label, drops in by_label.items() if len(drops.end)}
    tasks = max(len(f.end) for f in found.values())
    width = max(2.4, min(0.26 * tasks + 1.0, 4.8))
    figure, panels = _panels(list(found), width, 2.3, sharey=True)
    for (label, drops), axes in zip(found.items(), panels, strict=True):
        colour = _colour(series, label)
        x = np.arange(1, len(drops.end) + 1)
        axes.bar(x, drops.forgetting, color=colour, width=0.72)
        since = drops.learnt - drops.end
        axes.plot(x, since, "_", color=INK, markersize=max(4, min(12, 160 / tasks)))
        axes.axhline(0, color=INK, linewidth=0.8)
        _task_ticks(axes, range(1, tasks + 1), most=12)
        axes.grid(axis="y", alpha=0.18, color=INK)
    _shared_labels(figure, "task", "points forgotten")
    return figure


def class_accuracy(series: Series) -> Figure:
    """Accuracy of every class at the end, by the task it came in; one panel a series.

    Up to FEW_CLASSES classes each is a dot, best first within its task, and every run has its own
    dots; more are a box a task (quartiles and median, whiskers to the extremes) over all runs.
    """
    by_run = {k: [numbers.class_accuracy_by_task(r) for r in rs] for k, rs in series.items()}
    streams = [records[0].stream for records in series.values()]
    n_classes, n_tasks = streams[0].n_classes, max(s.n_tasks for s in streams)
    few = n_classes <= FEW_CLASSES
    width = 0.11 * n_classes + 1.0 if few else 0.24 * n_tasks + 0.9
    figure, panels = _panels(list(series), max(3.1, min(width, 5.0)), 2.4, sharey=True)
    for (label, runs), axes in zip(by_run.items(), panels, strict=True):
        colour = _colour(series, label)
        if few:
            _class_dots(axes, runs, colour)
        else:
            _class_boxes(axes, runs, colour)
        axes.set_ylim(-4, 104)
        axes.grid(axis="y", alpha=0.18, color=INK)
    _shared_labels(figure, "classes, by task", "accuracy at the end, %")
    return figure


def _class_dots(axes: Axes, runs: Sequence[Sequence[Floats]], colour: str) -> None:
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


def _class_boxes(axes: Axes, runs: Sequence[Sequence[Floats]], colour: str) -> None:
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
    _task_ticks(axes, range(1, len(pooled) + 1), most=12)


# --- losses and costs ---------------------------------------------------------------------------


def losses(series: Series) -> Figure:
    """Every loss term by epoch, tasks one after another; one panel a series with its own scale.

    The scale is logarithmic where a panel's values span more than a factor of thirty.
    """
    found = {k: c for k, rs in series.items() if (c := numbers.loss_curves(rs)) is not None}
    names = list(dict.fromkeys(name for curves in found.values() for name in curves.terms))
    figure, panels = _panels(list(found), 3.25 if len(found) > 2 else 4.8, 2.4)
    for axes, curves in zip(panels, found.values(), strict=True):
        short = len(curves.epochs) <= 60
        for name, values in curves.terms.items():
            colour, _, line = style(names.index(name))
            axes.plot(
                curves.epochs,
                values,
                line,
                color=colour,
                linewidth=1.3,
                marker="." if short else None,
                markersize=4,
                label=name,
            )
        for end in curves.ends[:-1]:
            axes.axvline(end + 0.5, color=INK, alpha=0.3, linewidth=0.5)
        known = np.concatenate(list(curves.terms.values()))
        known = known[np.isfinite(known)]
        if known.min() > 0 and known.max() / known.min() > 30:
            axes.set_yscale("log")
            axes.tick_params(which="minor", colors=INK)
        axes.set_xlim(0.4, curves.ends[-1] + 0.6)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    _shared_labels(figure, "epochs, tasks one after another", "loss")
    _legend(figure, "upper")
    return figure


def costs(series: Series) -> Figure:
    """Bars of the seconds by part, the peak memory and the parameters learnt, as far as known."""
    found = {label: numbers.cost(records) for label, records in series.items()}
    parts = [p for p in ("preparation", "training", "waiting", "evaluation") if _any(found, p)]
    parts += sorted({p for c in found.values() for p in c.seconds} - set(parts))
    places = [p for p in ("process", "device") if any(p in c.memory for c in found.values())]
    wanted: list[tuple[str, dict[str, list[float]]]] = []
    if parts:
        by_part = {p: [c.seconds.get(p, 0.0) for c in found.values()] for p in parts}
        wanted.append(("seconds a run", by_part))
    if places:
        by_place = {p: [c.memory.get(p, 0) / 2**30 for c in found.values()] for p in places}
        wanted.append(("peak memory, GiB", by_place))
    learnt = [c.parameters.get("learnt", 0) for c in found.values()]
    if any(learnt):
        unit, name = (1e6, "millions") if max(learnt) >= 1e6 else (1e3, "thousands")
        wanted.append((f"parameters learnt, {name}", {"": [n / unit for n in learnt]}))
    figure = Figure(figsize=(WIDTH, 0.28 * len(found) + 1.4), layout="constrained")
    y = np.arange(len(found))
    for i, (name, bars) in enumerate(wanted):
        axes = figure.add_subplot(1, len(wanted), i + 1)
        _dress(axes)
        left: Floats = np.zeros(len(found))
        side = 0.8 / len(bars) if name.startswith("peak") else 0.8
        for k, (part, values) in enumerate(bars.items()):
            beside = name.startswith("peak")
            at = y + (k - (len(bars) - 1) / 2) * side if beside else y
            axes.barh(at, values, side, left=0 if beside else left, color=COLOURS[k], label=part)
            left = left + values
        axes.set_xlabel(name)
        labels = [_wrapped(label, 26) for label in found]
        axes.set_yticks(y, labels if i == 0 else [""] * len(labels))
        axes.invert_yaxis()
        axes.margins(y=0.02)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        if len(bars) > 1:
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


def _any(found: Mapping[str, numbers.Cost], part: str) -> bool:
    return any(part in c.seconds for c in found.values())


# --- files --------------------------------------------------------------------------------------


def to_svg(figure: Figure, name: str = "") -> str:
    """The figure as an <svg> element without a background, in the text colour around it.

    Where a page has several, `name` begins all ids inside, so that none is there twice.
    """
    svg = _saved(figure, "svg", {"svg.fonttype": "none"}, transparent=True).decode()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    if not name:
        return svg
    refers = re.compile(r'(\bid="|url\(#|href="#)')
    return re.sub("<[^>]*>", lambda tag: refers.sub(rf"\g<1>{name}-", tag[0]), svg)


def to_files(figure: Figure) -> dict[str, bytes]:
    """The figure on white for print, by file ending; letters are in the files, dates are not."""
    return {
        "svg": _saved(figure, "svg", {"svg.fonttype": "path"}),
        "pdf": _saved(figure, "pdf", {"pdf.fonttype": 42}),
        "png": _saved(figure, "png", {}, dpi=200),
    }


def settle(figure: Figure) -> Figure:
    """Lay the figure out once, so that writing it in four formats does not do it four times."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _saved(figure: Figure, form: str, settings: dict[str, Any], **options: Any) -> bytes:
    buffer = io.BytesIO()
    nothing = {
        "svg": NO_METADATA,
        "pdf": dict.fromkeys(("Creator", "Producer", "CreationDate")),
        "png": {"Software": None},
    }[form]
    with matplotlib.rc_context({"svg.hashsalt": "cprompt", **settings}):
        figure.savefig(buffer, format=form, metadata=nothing, **options)
    return buffer.getvalue()


# --- what figures share -------------------------------------------------------------------------


def _new(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    _dress(axes)
    return figure, axes


def _dress(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    for side, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(side in ("left", "bottom"))


def _panels(
    labels: Sequence[str],
    width: float,
    height: float,
    *,
    sharey: bool = False,
    beside: float = 0.0,
) -> tuple[Figure, list[Axes]]:
    """A panel a label, its title, as many in a row as the page has room for.

    width, height: of one panel, in inches. beside: inches left for something on the right.
    """
    columns = min(len(labels), max(1, int((WIDTH - beside) / width)))
    rows = math.ceil(len(labels) / columns)
    size = (columns * width + 0.4 + beside, rows * height + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    panels: list[Axes] = []
    for i, label in enumerate(labels):
        axes = figure.add_subplot(rows, columns, i + 1, sharey=panels[0] if i and sharey else None)
        _dress(axes)
        title = _wrapped(label, int(width * 11))
        axes.set_title(title, color=INK, fontsize=10, loc="left")
        if sharey and i % columns:
            axes.tick_params(labelleft=False)
        panels.append(axes)
    return figure, panels


def _heatmaps(panels: Mapping[str, Floats], below: str, beside: str, unit: str) -> Figure:
    """A heat map a label on one scale from 0 to 100, with one colour bar."""
    most = max(len(cells) for cells in panels.values())
    cell, size = (0.28, 8.0) if most <= 12 else (0.21, 6.0)
    if most > MOST_SQUARES:
        cell, size = 2.8 / most, 0.0
    written = sum(int(np.isfinite(cells).sum()) for cells in panels.values())
    if written > MOST_DIGITS:
        size = 0.0
    side = max(2.5, cell * most + 0.4)
    height = max(1.9, 0.9 * cell * most + 0.7)
    figure, drawn = _panels(list(panels), side, height, beside=0.8)
    for axes, cells in zip(drawn, panels.values(), strict=True):
        _cells(axes, cells, size)
    _shared_labels(figure, below, beside)
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


def _cells(axes: Axes, values: Floats, size: float) -> None:
    """A heat map from 0 to 100, empty where a value is NaN; numbers in it unless `size` is 0."""
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


def _task_ticks(axes: Axes, tasks: Sequence[int], most: int = 20) -> None:
    step = math.ceil(len(tasks) / most) or 1
    axes.set_xticks(list(tasks)[::step])


def _shared_labels(figure: Figure, below: str, beside: str) -> None:
    figure.supxlabel(below, color=INK, fontsize=10)
    figure.supylabel(beside, color=INK, fontsize=10)


def _legend(figure: Figure, where: str = "lower") -> None:
    """All labels of all panels, once each, below or above everything, where it hides nothing."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    wrapped = [_wrapped(label, 44) for label in handles]
    longest = max(len(line) for label in wrapped for line in label.splitlines())
    columns = min(len(wrapped), max(1, int(figure.get_figwidth() / (0.085 * longest + 0.55))))
    lines = max(len(label.splitlines()) for label in wrapped)
    figure.set_figheight(figure.get_figheight() + 0.19 * lines * math.ceil(len(wrapped) / columns))
    figure.legend(
        handles.values(),
        wrapped,
        loc=f"outside {where} center",
        ncols=columns,
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )


def _wrapped(label: str, width: int) -> str:
    lines = [part for line in label.splitlines() for part in textwrap.wrap(line, width)]
    return _plain("\n".join(lines))


def _plain(label: str) -> str:
    """Text that matplotlib takes as it stands, not as mathematics."""
    return label.replace("$", r"\$")
