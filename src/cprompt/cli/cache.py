"""`cprompt cache`: what decoded images take on disk, and how to be rid of them."""

from __future__ import annotations

import time
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cprompt.cli import app
from cprompt.data.pipeline.cache import CacheConfig, cached, clear


@app.command()
def cache(
    folder: Path | None = typer.Option(
        None, "--folder", help="Another cache folder, as given to runs with --cache.folder."
    ),
    delete: bool = typer.Option(False, "--clear", help="Delete all of them."),
) -> None:
    """Show the decoded images that runs keep on disk, or delete them.

    They spare later runs on the same images the decoding; nothing else is lost with them.
    """
    console = Console()
    where = CacheConfig(folder=None if folder is None else str(folder)).path
    sets = cached(where)
    if delete:
        freed = clear(where)
        console.print(f"{where}: {_size(freed)} freed", highlight=False, soft_wrap=True)
        return
    if not sets:
        console.print(f"{where} holds no images", highlight=False, soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("size", "written", "images of"):
        table.add_column(column, no_wrap=True)
    for each in sets:
        written = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.created))
        table.add_row(_size(each.bytes), written, escape(each.source))
    console.print(table)
    total = _size(sum(each.bytes for each in sets))
    console.print(
        f"{total} in {where}; `cprompt cache --clear` deletes it", highlight=False, soft_wrap=True
    )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.1f} MiB"
