"""Printing: lines as they are, tables in the format asked for, and what is live."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console, RenderableType
from rich.measure import Measurement

from cprompt.files import shown_path

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress
    from rich.table import Table

D = TypeVar("D", bound="LiveDisplay")


_WIDE = 10_000  # columns: more than any table has


class Format(str, Enum):
    """How a table is printed."""

    terminal = "terminal"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"


def say(*lines: str, console: Console | None = None) -> None:
    """Print each line unchanged: not wrapped, not coloured, brackets not read as markup.

    Only bytes of file names that are not UTF-8 are escaped; see `shown_path`.
    """
    console = console or Console()
    for line in lines:
        console.print(shown_path(line), markup=False, highlight=False, soft_wrap=True)


def fits(table: Table, console: Console) -> bool:
    """Whether the table can be printed without folding any cell."""
    return _width(table, console) <= console.width


def print_whole(table: Table, console: Console) -> None:
    """Print a table without folding any cell, even if its lines are too long for the terminal.

    The terminal then goes on in the next line, and what is copied from there is whole.
    """
    console.width = max(console.width, _width(table, console))
    console.print(table)


def _width(table: Table, console: Console) -> int:
    anywhere = console.options.update(width=_WIDE)
    return Measurement.get(console, anywhere, table).maximum


def print_table(
    format: Format, to_rich: Callable[[int], RenderableType], to_text: Callable[[str], str]
) -> None:
    """Print a table: `to_rich(width)` for the terminal, `to_text(format)` for all else."""
    if format is Format.terminal:
        console = Console()
        console.print(to_rich(console.width))
    else:
        print(to_text(format.value), end="")


class LiveDisplay:
    """A context manager that shows something live; on Ctrl-C a line says what to do next."""

    def __init__(self, live: Progress | Live, if_stopped: str) -> None:
        self._live = live
        self._if_stopped = if_stopped

    def __enter__(self: D) -> D:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._live.stop()
        if kind is KeyboardInterrupt:
            self._live.console.print(self._if_stopped, highlight=False)
