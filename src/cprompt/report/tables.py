"""Filled tables as text: for the terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import rich.box
import rich.console
import rich.table
from rich.text import Text

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
    return _markdown(table.title, _lines(table), table.notes)


def _markdown(
    title: str, lines: Sequence[Sequence[str]], notes: Sequence[str], texts: int = 1
) -> str:
    """The first line is the head; the first `texts` columns are on the left."""
    head, *body = ([_md(cell) for cell in line] for line in lines)
    rule = ["---"] * texts + ["---:"] * (len(head) - texts)
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *body])
    below = "\n".join(f"{_md(note)}  " for note in notes)
    return f"**{_md(title)}**\n\n{text}\n" + (f"\n{below}\n" if notes else "")


def to_latex(table: Table) -> str:
    """A booktabs table; the paper's columns in grey."""
    grey = [column.whose == "paper" for group in printed(table) for column in group]
    layout = "l" + "".join(r">{\color{gray}}r" if g else "r" for g in grey)
    return _latex(table.title, _lines(table), table.notes, layout)


def _latex(title: str, lines: Sequence[Sequence[str]], notes: Sequence[str], layout: str) -> str:
    head, *body = (" & ".join(map(_tex, line)) + r" \\" for line in lines)
    caption = _tex(" ".join([f"{title}.", *notes]))
    rows = "\n".join(body)
    return (
        "% needs booktabs, array and xcolor\n"
        f"\\begin{{table}}\n\\centering\n\\caption{{{caption}}}\n\\begin{{tabular}}{{{layout}}}\n"
        f"\\toprule\n{head}\n\\midrule\n{rows}\n\\bottomrule\n\\end{{tabular}}\n"
        "\\end{table}\n"
    )


def _lines(table: Table) -> list[list[str]]:
    """The headings, then the rows, as text; the first column holds the labels."""
    columns = [column for group in printed(table) for column in group]
    rows = [
        [label, *(column.texts[i] for column in columns)] for i, (label, _) in enumerate(table.rows)
    ]
    return [["", *(column.heading for column in columns)], *rows]


def to_csv(table: Table) -> str:
    """One line a row; mean, std and number of runs of each metric apart, and the paper's."""
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

FOLDED = 27
"""Characters that a text column may be folded to where space is short."""

Value = str | int | float | Cell | None


@dataclass(frozen=True)
class Grid:
    """A table of any values: text, numbers, means with their spread, None where there is none.

    texts: the first so many columns hold text.
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

    def to_markdown(self) -> str:
        """A pipe table with title and notes."""
        return _markdown(self.title, self.lines(), self.notes, self.texts)

    def to_latex(self) -> str:
        """A booktabs table."""
        layout = "l" * self.texts + "r" * (len(self.head) - self.texts)
        return _latex(self.title, self.lines(), self.notes, layout)

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


_MD = str.maketrans({**{character: f"\\{character}" for character in "\\|<"}, "\n": " ", "\r": " "})


def _md(text: str) -> str:
    """Text that a Markdown table holds in one cell and does not take for HTML."""
    return text.translate(_MD)


_TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "±": r"$\pm$",
        "–": "--",
        "×": r"$\times$",
        "\n": " ",
        "\r": " ",
    }
)


def _tex(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return text.translate(_TEX)
