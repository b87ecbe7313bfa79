"""Tables of the paper, filled with our numbers, for the terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import NamedTuple

import rich.box
import rich.console
import rich.table
from rich.text import Text

from cprompt.report.markup import latex_table, markdown_table
from cprompt.research.tables import Cell, Table

DASH = "–"


def ours(cell: Cell) -> str:
    """Our number, as 12.34±0.56; a dash where there is none."""
    if cell.mean is None:
        return DASH
    return f"{cell.mean:.2f}" + (f"±{cell.std:.2f}" if cell.std is not None else "")


def paper(cell: Cell) -> str:
    """The paper's number as printed there."""
    return cell.paper or DASH


class Column(NamedTuple):
    """One printed column; `whose` is ours or paper, or empty where the paper has no such number."""

    metric: str
    whose: str
    texts: list[str]

    @property
    def heading(self) -> str:
        """The metric and, where both are shown, whose numbers these are."""
        return f"{self.metric} ({self.whose})" if self.whose else self.metric


def printed(table: Table) -> list[list[Column]]:
    """The columns of each metric: ours and the paper's, or ours alone if no row has the paper's."""
    groups = []
    for i, metric in enumerate(table.columns):
        cells = [row[i] for _, row in table.rows]
        mine = [ours(cell) for cell in cells]
        if any(cell.paper for cell in cells):
            theirs = [paper(cell) for cell in cells]
            groups.append([Column(metric, "ours", mine), Column(metric, "paper", theirs)])
        else:
            groups.append([Column(metric, "", mine)])
    return groups


def to_rich(table: Table, width: int) -> rich.console.Group:
    """For a terminal of `width` characters; the paper's numbers dimmed.

    Metrics that do not fit beside the first ones go below them, beside the labels again, so that
    no number is cut off.
    """
    parts: list[list[Column]] = [[]]
    for group in printed(table):
        if parts[-1] and _width(table, [*parts[-1], *group]) > width:
            parts.append([])
        parts[-1] += group
    blocks = [_block(table, columns) for columns in parts]
    notes = Text("\n".join(table.notes), style="table.caption")
    return rich.console.Group(Text(table.title, style="table.title"), *blocks, notes)


def _width(table: Table, columns: Sequence[Column]) -> int:
    """Characters that a block with these columns takes, its longest heading words unbroken."""
    labels = max(len(label) for label, _ in table.rows)
    return 1 + sum(3 + n for n in [labels, *map(_narrowest, columns)])


def _narrowest(column: Column) -> int:
    return max(map(len, [*_short(column).split(), *column.texts]))


def _short(column: Column) -> str:
    return "paper" if column.whose == "paper" else column.metric


def _block(table: Table, columns: Sequence[Column]) -> rich.table.Table:
    block = rich.table.Table(box=rich.box.SIMPLE_HEAD)
    block.add_column("", overflow="fold")
    for column in columns:
        style = "dim" if column.whose == "paper" else ""
        block.add_column(_short(column), justify="right", style=style, width=_narrowest(column))
    for i, (label, _) in enumerate(table.rows):
        block.add_row(Text(label), *(column.texts[i] for column in columns))
    return block


def to_markdown(table: Table) -> str:
    """A pipe table with title and notes."""
    return markdown_table(table.title, _lines(table), table.notes)


def to_latex(table: Table) -> str:
    """A booktabs table; the paper's columns in grey."""
    grey = [column.whose == "paper" for group in printed(table) for column in group]
    layout = "l" + "".join(r">{\color{gray}}r" if g else "r" for g in grey)
    return latex_table(table.title, _lines(table), table.notes, layout)


def _lines(table: Table) -> list[list[str]]:
    """The headings, then the rows, as text; the first column holds the labels."""
    columns = [column for group in printed(table) for column in group]
    rows = [
        [label, *(column.texts[i] for column in columns)] for i, (label, _) in enumerate(table.rows)
    ]
    return [["", *(column.heading for column in columns)], *rows]


def to_csv(table: Table) -> str:
    """One line per row; mean, std and number of runs of each metric apart, and the paper's."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    parts = ("mean", "std", "runs", "paper")
    writer.writerow(["row", *(f"{c} {part}" for c in table.columns for part in parts)])
    for label, cells in table.rows:
        values: list[object] = [label]
        for cell in cells:
            values += [cell.mean, cell.std, cell.runs, cell.paper]
        writer.writerow(["" if v is None else v for v in values])
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}
