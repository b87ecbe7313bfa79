"""Tables of any values: each format can be read back."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from cprompt.report.grid import Grid
from cprompt.research.tables import Cell
from tests.report.reader import layout, pipes, tex_rows

GRID = Grid(
    "Any <table>",
    ("", "class", "Last", "parameters"),
    (
        ("a|b", "<script>", Cell(50.126, 1.5, 3, None), 1234567),
        ("c\\d", "two\nlines", None, 0.12345),
    ),
    ("A note.",),
    texts=2,
)


def test_a_grid_in_markdown_keeps_every_name_in_its_cell() -> None:
    assert GRID.to_markdown() == (
        "**Any \\<table>**\n\n"
        "|  | class | Last | parameters |\n"
        "| --- | --- | ---: | ---: |\n"
        "| a\\|b | \\<script> | 50.13±1.50 | 1,234,567 |\n"
        "| c\\\\d | two lines | – | 0.12 |\n\n"
        "A note.  \n"
    )


def test_a_grid_in_latex_has_a_layout_and_one_line_a_row() -> None:
    text = GRID.to_latex()
    assert layout(text) == ["l", "l", "r", "r"]
    assert [len(row) for row in tex_rows(text)] == [4, 4, 4]
    assert r"\caption{Any <table>. A note.}" in text
    assert "two lines & -- & 0.12" in text


def test_a_grid_in_csv_is_unrounded_with_spreads_apart() -> None:
    assert list(csv.reader(io.StringIO(GRID.to_csv()))) == [
        ["", "class", "Last mean", "Last std", "Last runs", "parameters"],
        ["a|b", "<script>", "50.126", "1.5", "3", "1234567"],
        ["c\\d", "two\nlines", "", "", "", "0.12345"],
    ]


def test_a_grid_is_written_in_the_format_asked_for() -> None:
    assert GRID.to_text("markdown") == GRID.to_markdown()
    assert GRID.to_text("latex") == GRID.to_latex()
    assert GRID.to_text("csv") == GRID.to_csv()


def test_a_grid_without_rows_is_its_head() -> None:
    empty = Grid("t", ("", "x"), ())
    assert list(csv.reader(io.StringIO(empty.to_csv()))) == [["", "x"]]
    assert pipes(empty.to_markdown()) == [["", "x"], ["---", "---:"]]


@pytest.mark.parametrize("width", [50, 80, 200])
def test_no_number_of_a_grid_is_cut_off_in_a_narrow_terminal(width: int) -> None:
    grid = Grid(
        "t",
        ("", *(f"column {i}" for i in range(9))),
        tuple((f"a rather long label {i}", *(f"{i}{k}.25±1.50" for k in range(9))) for i in "12"),
    )
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(grid.to_rich(width))
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert all(f"{i}{k}.25±1.50" in printed for i in "12" for k in range(9))
    assert max(map(len, printed.splitlines())) <= width
