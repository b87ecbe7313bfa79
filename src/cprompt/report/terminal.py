"""One record as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from rich.table import Table
from rich.text import Text

from cprompt.report.definitions import METRIC_TEXTS
from cprompt.research import metrics
from cprompt.research.record import Record


def matrix_table(record: Record, title: str, mode: str = "selected") -> Table:
    """a[i,j] as a heat map: a row for each task learnt, a column for each task tested."""
    matrix = record.matrix(mode)
    cells = metrics.accuracy_matrix(matrix)
    overall = metrics.seen_accuracy(matrix)
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    table.add_column("after task", justify="right", style="dim")
    for j in range(cells.shape[1]):
        table.add_column(f"on {j + 1}", justify="right")
    table.add_column("all seen", justify="right", style="bold")
    for i, row in enumerate(cells):
        shown = [_cell(value) for value in row]
        table.add_row(str(i + 1), *shown, f"{overall[i]:.1f}")
    return table


def summary_table(record: Record, title: str = "") -> Table:
    """Every metric that the record has."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    table.add_column("metric")
    table.add_column("%", justify="right")
    for name, value in record.summary().items():
        metric = METRIC_TEXTS[name].title if name in METRIC_TEXTS else name
        table.add_row(metric, f"{value:.2f}")
    return table


def movement_table(record: Record) -> Table:
    """How far each task moved each group of parameters, in percent of where it began."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("moved by training, %")
    for task in range(len(record.movement)):
        table.add_column(f"task {task + 1}", justify="right")
    for group in dict.fromkeys(group for task in record.movement for group in task):
        moved = [task.get(group) for task in record.movement]
        table.add_row(group, *("" if m is None else f"{100 * m.relative:.2f}" for m in moved))
    return table


def learners_table(records: Mapping[str, Record]) -> Table:
    """Accuracy over all classes seen after each task, as a curve and in numbers; a row per label.

    All records are of the same stream.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("")
    table.add_column("")
    for task in range(max(record.stream.n_tasks for record in records.values())):
        table.add_column(f"{task + 1}", justify="right")
    for label, record in records.items():
        seen = metrics.seen_accuracy(record.matrix())
        table.add_row(label, _curve(seen), *(_cell(value) for value in seen))
    return table


def _curve(values: Iterable[float]) -> str:
    """A bar per percentage, from nothing to full height at 100."""
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(value / 100 * 8))] for value in values)


def _cell(value: float) -> Text:
    if np.isnan(value):
        return Text("")
    # From pale to deep blue: readable on dark and light terminals, and without seeing colours.
    shade = round(value / 100 * 5)
    background = ("#f7fbff", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6")[shade]
    return Text(f"{value:5.1f}", style=f"#08306b on {background}")
