"""Blocks of a page between `<!-- NAME -->` and `<!-- end -->`, made anew, and their tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence


def renewed(page: str, names: str, block: Callable[[str], str]) -> str:
    """The page with `block(NAME)` in each block whose name matches the pattern `names`."""
    return re.sub(
        rf"(<!-- ({names}) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}\n{block(found[2])}\n{found[3]}",
        page,
        flags=re.DOTALL,
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown; the first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
