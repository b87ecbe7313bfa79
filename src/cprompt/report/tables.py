"""Filled tables as text: for the terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import rich.box
import rich.table

from cprompt.tables import Cell, Table

DASH = "–"


def ours(cell: Cell) -> str:
    """Our number, as 12.34±0.56; a dash where there is none."""
    if cell.mean is None:
        return DASH
    return f"{cell.mean:.2f}" + (f"±{cell.std:.2f}" if cell.std is not None else "")


def paper(cell: Cell) -> str:
    """The paper's number as printed there."""
    return cell.paper or DASH


def headings(table: Table) -> list[str]:
    """The first column, then each metric twice: ours and the paper's."""
    return ["", *(f"{c} {whose}" for c in table.columns for whose in ("(ours)", "(paper)"))]


def lines(table: Table) -> list[list[str]]:
    """The rows as text."""
    return [
        [label, *(text for cell in cells for text in (ours(cell), paper(cell)))]
        for label, cells in table.rows
    ]


def to_rich(table: Table) -> rich.table.Table:
    """For a terminal; the paper's numbers dimmed."""
    shown = rich.table.Table(
        title=table.title,
        title_justify="left",
        caption="\n".join(table.notes),
        caption_justify="left",
        box=rich.box.SIMPLE_HEAD,
    )
    shown.add_column("", overflow="fold")
    for column in table.columns:
        shown.add_column(column, justify="right", no_wrap=True)
        shown.add_column("paper", justify="right", style="dim", no_wrap=True)
    for line in lines(table):
        shown.add_row(*line)
    return shown


def to_markdown(table: Table) -> str:
    """A pipe table with title and notes."""
    head = headings(table)
    rule = ["---", *["---:"] * (len(head) - 1)]
    body = [head, rule, *lines(table)]
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in body)
    notes = "\n".join(f"{note}  " for note in table.notes)
    return f"**{table.title}**\n\n{text}\n\n{notes}\n"


def to_latex(table: Table) -> str:
    """A booktabs table; the paper's columns in grey."""
    head = " & ".join(_tex(h) for h in headings(table))
    body = "\n".join(" & ".join(_tex(text) for text in line) + r" \\" for line in lines(table))
    layout = "l" + r"r>{\color{gray}}r" * len(table.columns)
    caption = _tex(f"{table.title}. {' '.join(table.notes)}")
    return (
        "% needs booktabs, array and xcolor\n"
        f"\\begin{{table}}\n\\centering\n\\caption{{{caption}}}\n\\begin{{tabular}}{{{layout}}}\n"
        f"\\toprule\n{head} \\\\\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
        "\\end{table}\n"
    )


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


def _tex(text: str) -> str:
    for plain, escaped in (
        ("\\", r"\textbackslash{}"),
        ("&", r"\&"),
        ("%", r"\%"),
        ("_", r"\_"),
        ("#", r"\#"),
        ("±", r"$\pm$"),
        ("–", "--"),
        ("×", r"$\times$"),
    ):
        text = text.replace(plain, escaped)
    return text
