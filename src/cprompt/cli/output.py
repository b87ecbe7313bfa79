"""Printing lines as they are."""

from __future__ import annotations

from rich.console import Console

from cprompt.files import shown_path


def say(*lines: str, console: Console | None = None) -> None:
    """Print each line unchanged: not wrapped, not coloured, brackets not read as markup.

    Only bytes of file names that are not UTF-8 are escaped; see `shown_path`.
    """
    console = console or Console()
    for line in lines:
        console.print(shown_path(line), markup=False, highlight=False, soft_wrap=True)
