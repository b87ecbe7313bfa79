"""A table of any values, for the terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Literal

import rich.box
import rich.console
import rich.table
from rich.text import Text

from cprompt.report.markup import latex_table, markdown_table
from cprompt.report.tables import DASH, ours
from cprompt.research.tables import Cell

FOLDED = 27
"""Characters that a text column may be folded to where space is short."""

Value = str | int | float | Cell | None


@dataclass(frozen=True)
class Grid:
    """A table of any values: text, numbers, means with their spread, None where there is none.

    texts: number of columns, from the left, that hold text.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = ()
    texts: int = 1

    def lines(self) -> list[list[str]]:
        """The head, then the rows, as they are printed."""
        return [list(self.head), *([_value(v) for v in row] for row in self.rows)]

    def to_rich(self, width: int) -> rich.console.Group:
        """For a terminal of `width` characters.

        Number columns that do not fit beside the first ones go below them, beside the text
        columns again, so that no number is cut off.
        """
        columns = list(zip(*self.lines(), strict=True))
        widths = [3 + max(map(len, column)) for column in columns]
        texts = sum(min(w, FOLDED) for w in widths[: self.texts])
        parts: list[list[int]] = [[]]
        for i in range(self.texts, len(columns)):
            if parts[-1] and 1 + texts + sum(widths[k] for k in [*parts[-1], i]) > width:
                parts.append([])
            parts[-1].append(i)
        blocks = []
        for part in parts:
            block = rich.table.Table(box=rich.box.SIMPLE_HEAD)
            for i in (*range(self.texts), *part):
                right = i >= self.texts
                justify: Literal["left", "right"] = "right" if right else "left"
                name = Text(self.head[i])
                block.add_column(name, justify=justify, no_wrap=right, overflow="fold")
            for row in self.lines()[1:]:
                block.add_row(*(Text(row[i]) for i in (*range(self.texts), *part)))
            blocks.append(block)
        notes = [Text(note, style="table.caption") for note in self.notes]
        return rich.console.Group(Text(self.title, style="table.title"), *blocks, *notes)

    def to_text(self, format: str) -> str:
        """As markdown, latex or csv."""
        return {"markdown": self.to_markdown, "latex": self.to_latex, "csv": self.to_csv}[format]()

    def to_markdown(self) -> str:
        """A pipe table with title and notes."""
        return markdown_table(self.title, self.lines(), self.notes, self.texts)

    def to_latex(self) -> str:
        """A booktabs table."""
        layout = "l" * self.texts + "r" * (len(self.head) - self.texts)
        return latex_table(self.title, self.lines(), self.notes, layout)

    def to_csv(self) -> str:
        """Unrounded; mean, std and number of runs of a column with spreads apart."""
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.head)
        spread = [any(isinstance(value, Cell) for value in column) for column in columns]
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        head: list[str] = []
        for name, apart in zip(self.head, spread, strict=True):
            head += [f"{name} {part}" for part in ("mean", "std", "runs")] if apart else [name]
        writer.writerow(head)
        for row in self.rows:
            line: list[Value] = []
            for value, apart in zip(row, spread, strict=True):
                if isinstance(value, Cell):
                    line += [value.mean, value.std, value.runs]
                else:
                    line += [value, None, None] if apart else [value]
            writer.writerow(line)
        return buffer.getvalue()


def _value(value: Value) -> str:
    if value is None:
        return DASH
    if isinstance(value, Cell):
        return ours(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if isinstance(value, float) else value
