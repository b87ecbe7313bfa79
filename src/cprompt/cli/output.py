"""Printing lines as they are."""

from __future__ import annotations

from rich.console import Console


def say(*lines: str, console: Console | None = None) -> None:
    """Print each line unchanged: not wrapped, not coloured, brackets not read as markup."""
    console = console or Console()
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
