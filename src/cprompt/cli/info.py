"""`cprompt info`: what a model has learnt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cprompt.cli.arguments import MODEL
from cprompt.cli.output import print_whole, say
from cprompt.errors import counted

_NAMES_SHOWN = 5


def info(
    model: Path = MODEL,
    classes: bool = typer.Option(False, "--classes", help="List all classes and their photos."),
    as_json: bool = typer.Option(False, "--json", help="The content of model.json."),
) -> None:
    """Show what a model has learnt, when, from how many photos, and on which backbone."""
    from cprompt.classifier import model_folder

    about = model_folder.read_about(model)
    if as_json:
        print(json.dumps(about, indent=2, ensure_ascii=False))
        model_folder.check_sizes(model, about)
        return
    console = Console()
    print_whole(_classes(about), console) if classes else console.print(_batches(about))
    backbone = about["backbone"]
    say(
        f"{counted(len(about['classes']), 'class')}; {about['method']['name']} on "
        f"{backbone['name']} ({backbone['weights']}, {backbone['fingerprint'][:12]})",
        f"about {100 * (1 - about['accept']):.0f} % of known photos are called unknown"
        if about["calibration"]["threshold"]
        else "no photo is called unknown",
        f"{model_folder.size(model) / 2**20:.1f} MiB in {model}, version {about['generation']}",
        console=console,
    )
    model_folder.check_sizes(model, about)


def _batches(about: Mapping[str, Any]) -> Table:
    table = _table("batch", "learnt (UTC)", "photos", "new", "again", "s")
    for batch in about["history"]:
        table.add_row(
            str(batch["number"]),
            batch["when"].replace("T", " ").removesuffix("+00:00"),
            str(sum(batch["photos"].values())),
            escape(_first(batch["new"])),
            escape(_first(batch["returning"])),
            f"{batch['seconds']:.0f}",
        )
    return table


def _classes(about: Mapping[str, Any]) -> Table:
    table = _table("class", "photos", "batches")
    for each in about["classes"]:
        name = each["name"]
        batches = [batch for batch in about["history"] if name in batch["photos"]]
        table.add_row(
            escape(name),
            str(sum(batch["photos"][name] for batch in batches)),
            ", ".join(str(batch["number"]) for batch in batches),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        right = column in ("batch", "photos", "s")
        table.add_column(column, justify="right" if right else "left")
    return table


def _first(names: Sequence[str]) -> str:
    """The first names as they are, and how many more `--classes` lists."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    return f"{shown} and {more} more (--classes)" if more > 0 else shown
