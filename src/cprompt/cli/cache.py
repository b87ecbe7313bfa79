"""`cprompt cache`: the decoded images on disk."""

from __future__ import annotations

import time
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cprompt.cli.output import say


def cache(
    folder: Path | None = typer.Option(
        None, "--folder", help="Another cache folder, as given to runs with --cache.folder."
    ),
    delete: bool = typer.Option(False, "--clear", help="Delete all of them."),
) -> None:
    """Show the decoded images that runs keep on disk, or delete them.

    With them, later runs on the same images need not decode again. Deleting
    them loses nothing else.
    """
    from cprompt.data.pipeline.cache import CacheConfig, cached, clear

    where = CacheConfig(folder=None if folder is None else str(folder)).path
    if delete:
        say(f"{where}: {_size(clear(where))} freed")
        return
    sets = cached(where)
    if not sets:
        say(f"{where} holds no images")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("size", "written", "images of"):
        table.add_column(column, no_wrap=True)
    for each in sets:
        written = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.created))
        table.add_row(_size(each.bytes), written, escape(each.source))
    console = Console()
    console.print(table)
    total = _size(sum(each.bytes for each in sets))
    say(f"{total} in {where}; `cprompt cache --clear` deletes it", console=console)


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.1f} MiB"
