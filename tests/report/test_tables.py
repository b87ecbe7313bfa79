"""Filled tables as text: every number is there once, and each format can be read back."""

from __future__ import annotations

import csv
import io
import re

import pytest
from rich.console import Console

from cprompt.report.tables import to_csv, to_latex, to_markdown, to_rich
from cprompt.research.tables import Cell, Table, fill, load_table
from tests.report.reader import layout, pipes, tex_rows

NOTHING = Cell(None, None, 0, None)

MIXED = Table(
    title="A title",
    columns=("Last-acc", "stored (M)", "Avg-acc"),
    rows=(
        (
            "ours & theirs",
            (Cell(66.774, 0.368, 3, "66.77±0.37"), Cell(1.0, None, 1, None), NOTHING),
        ),
        ("w/o L_aux", (Cell(5.0, None, 1, None), NOTHING, Cell(7.125, 0.0, 2, "100"))),
    ),
    notes=("First note, 50 % of it.", "Second note."),
)
"""The paper has numbers in the first and the last column, each in one row, none in the middle."""

HEADINGS = [
    "Last-acc (ours)",
    "Last-acc (paper)",
    "stored (M)",
    "Avg-acc (ours)",
    "Avg-acc (paper)",
]
ROWS = [
    ["ours & theirs", "66.77±0.37", "66.77±0.37", "1.00", "–", "–"],
    ["w/o L_aux", "5.00", "–", "–", "7.12±0.00", "100"],
]


@pytest.fixture(scope="module")
def ablation() -> Table:
    return fill(load_table("ablation"), [1], lambda config: None)


def shown(table: Table, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(to_rich(table, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# --- Markdown -----------------------------------------------------------------------------------


def test_markdown_has_title_headings_rows_and_notes() -> None:
    text = to_markdown(MIXED)
    head, rule, *rows = pipes(text)
    assert head == ["", *HEADINGS]
    assert rule == ["---", *["---:"] * 5]
    assert rows == ROWS
    assert text.startswith("**A title**\n\n|")
    assert text.endswith("|\n\nFirst note, 50 % of it.  \nSecond note.  \n")


# --- LaTeX --------------------------------------------------------------------------------------


def test_latex_has_as_many_cells_in_every_line_as_columns(ablation: Table) -> None:
    for table in (MIXED, ablation):
        text = to_latex(table)
        assert {len(row) for row in tex_rows(text)} == {len(layout(text))}
        assert len(tex_rows(text)) == 1 + len(table.rows)
    assert layout(to_latex(MIXED)) == ["l", "r", r">{\color{gray}}r", "r", "r", r">{\color{gray}}r"]


def test_latex_is_a_whole_table_with_every_brace_closed() -> None:
    text = to_latex(MIXED)
    for environment in ("table", "tabular"):
        assert text.count(f"\\begin{{{environment}}}") == 1
        assert text.count(f"\\end{{{environment}}}") == 1
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
    bare = re.sub(r"\\[{}]", "", text)
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    assert text.startswith("% needs booktabs, array and xcolor\n")


def test_latex_escapes_what_would_not_print_as_it_stands() -> None:
    rows = tex_rows(to_latex(MIXED))
    assert rows[0] == [" ", *HEADINGS]
    assert rows[1][0].strip() == r"ours \& theirs"
    assert rows[1][1:] == [r"66.77$\pm$0.37", r"66.77$\pm$0.37", "1.00", "--", "--"]
    assert rows[2][0].strip() == r"w/o L\_aux"
    assert r"\caption{A title. First note, 50 \% of it. Second note.}" in to_latex(MIXED)


# --- CSV ----------------------------------------------------------------------------------------


def test_csv_parsed_back_gives_every_number_in_full() -> None:
    head, *rows = csv.reader(io.StringIO(to_csv(MIXED)))
    parts = ("mean", "std", "runs", "paper")
    assert head == ["row", *(f"{c} {p}" for c in MIXED.columns for p in parts)]
    read = []
    for label, *values in rows:
        assert len(values) == 12
        cells = []
        for i in range(0, 12, 4):
            mean, std, runs, paper = values[i : i + 4]
            cells.append(
                Cell(
                    float(mean) if mean else None,
                    float(std) if std else None,
                    int(runs),
                    paper or None,
                )
            )
        read.append((label, tuple(cells)))
    assert tuple(read) == MIXED.rows


def test_csv_quotes_labels_with_commas() -> None:
    label = 'prompt, head, "one" key'
    table = Table("T", ("c, d",), ((label, (NOTHING,)),), ())
    head, row = csv.reader(io.StringIO(to_csv(table)))
    assert head == ["row", "c, d mean", "c, d std", "c, d runs", "c, d paper"]
    assert row == [label, "", "", "0", ""]


# --- the terminal -------------------------------------------------------------------------------


def test_the_terminal_shows_title_rows_and_notes() -> None:
    lines = [line.strip() for line in shown(MIXED, 100).splitlines()]
    assert lines[0] == "A title"
    assert ["Last-acc", "paper", "(M)", "Avg-acc", "paper"] in [line.split() for line in lines]
    cells = [re.split(r" {2,}", line) for line in lines]
    assert all(row in cells for row in ROWS)
    assert lines[-2:] == ["First note, 50 % of it.", "Second note."]


@pytest.mark.parametrize("width", [60, 80, 120, 250])
def test_no_number_is_cut_off_however_narrow_the_terminal(ablation: Table, width: int) -> None:
    text = shown(ablation, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    numbers = re.findall(r"(?<=\s)\d+\.\d\d(?:±\d\.\d\d)?(?=\s)", text)
    printed = [cell.paper for _, cells in ablation.rows for cell in cells if cell.paper]
    assert sorted(numbers) == sorted(printed)


def test_what_fits_is_one_block_and_each_further_block_has_the_labels_again(
    ablation: Table,
) -> None:
    assert shown(ablation, 250).count("CCL + PCL w/o MK") == 1
    assert shown(ablation, 80).count("CCL + PCL w/o MK") > 1


def test_square_brackets_are_text_in_the_terminal() -> None:
    table = Table("a [red] title", ("c",), (("[b]label", (NOTHING,)),), ("file:x[1].pth",))
    text = shown(table, 80)
    assert "a [red] title" in text
    assert "[b]label" in text
    assert "file:x[1].pth" in text


# --- columns without a number of the paper's ----------------------------------------------------


def test_where_the_paper_has_no_number_only_ours_is_shown() -> None:
    bare = Table("T", ("stored",), (("a", (Cell(1.5, None, 0, None),)),), ())
    assert pipes(to_markdown(bare)) == [["", "stored"], ["---", "---:"], ["a", "1.50"]]
    assert layout(to_latex(bare)) == ["l", "r"]
    assert tex_rows(to_latex(bare))[0][1:] == ["stored"]
    assert "paper" not in shown(bare, 80)
    assert "stored paper" in to_csv(bare)  # the same fields in every file
