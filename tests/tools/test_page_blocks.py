"""tools/page_blocks.py: only what is between the comments changes."""

from __future__ import annotations

from tests.scripts import load_tool

blocks = load_tool("page_blocks")


def test_only_blocks_whose_names_match_are_made_anew() -> None:
    page = "a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y/z -->\nkept\n<!-- end -->\n"
    assert blocks.renewed(page, r"\w", lambda name: f"new {name}") == (
        "a\n<!-- x -->\n\nnew x\n<!-- end -->\nb\n<!-- y/z -->\nkept\n<!-- end -->\n"
    )


def test_a_table_has_a_column_of_text_and_columns_of_numbers() -> None:
    assert blocks.table(["", "n"], [["a", "1"], ["b", "2"]]) == (
        "|  | n |\n| --- | ---: |\n| a | 1 |\n| b | 2 |\n"
    )
