"""Tables as Markdown and LaTeX: every name stays text."""

from __future__ import annotations

import pytest

from cprompt.report.markup import latex_table, markdown_table


@pytest.mark.parametrize(
    ("plain", "escaped"),
    [
        ("\\", r"\textbackslash{}"),
        ("~", r"\textasciitilde{}"),
        ("^", r"\textasciicircum{}"),
        *((character, "\\" + character) for character in "&%$#_{}"),
        ("±", r"$\pm$"),
        ("×", r"$\times$"),
        ("–", "--"),
        ("a\\{b}_c$", r"a\textbackslash{}\{b\}\_c\$"),
    ],
)
def test_every_special_character_of_latex_is_escaped(plain: str, escaped: str) -> None:
    text = latex_table("T", [["", "c"], [plain, "1.00"]], [], "lr")
    assert f"\\midrule\n{escaped} & 1.00 \\\\\n" in text


@pytest.mark.parametrize(
    ("plain", "escaped"),
    [("a|b", r"a\|b"), ("<b>", r"\<b>"), ("c\\d", r"c\\d"), ("two\r\nlines", "two  lines")],
)
def test_a_name_stays_in_its_markdown_cell(plain: str, escaped: str) -> None:
    text = markdown_table(plain, [["", plain], [plain, "1"]], [plain], texts=2)
    assert text == (
        f"**{escaped}**\n\n|  | {escaped} |\n| --- | --- |\n| {escaped} | 1 |\n\n{escaped}  \n"
    )
