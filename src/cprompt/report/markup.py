"""Tables of text as Markdown and LaTeX, with every name escaped."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(
    title: str, lines: Sequence[Sequence[str]], notes: Sequence[str], texts: int = 1
) -> str:
    """A pipe table with title and notes; the first line is the head.

    texts: number of columns, from the left, that are aligned to the left.
    """
    head, *body = ([_md(cell) for cell in line] for line in lines)
    rule = ["---"] * texts + ["---:"] * (len(head) - texts)
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *body])
    below = "\n".join(f"{_md(note)}  " for note in notes)
    return f"**{_md(title)}**\n\n{text}\n" + (f"\n{below}\n" if notes else "")


def latex_table(
    title: str, lines: Sequence[Sequence[str]], notes: Sequence[str], layout: str
) -> str:
    """A booktabs table; the first line is the head, `layout` the columns of the tabular."""
    head, *body = (" & ".join(map(_tex, line)) + r" \\" for line in lines)
    caption = _tex(" ".join([f"{title}.", *notes]))
    rows = "\n".join(body)
    return (
        "% needs booktabs, array and xcolor\n"
        f"\\begin{{table}}\n\\centering\n\\caption{{{caption}}}\n\\begin{{tabular}}{{{layout}}}\n"
        f"\\toprule\n{head}\n\\midrule\n{rows}\n\\bottomrule\n\\end{{tabular}}\n"
        "\\end{table}\n"
    )


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
