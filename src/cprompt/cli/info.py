"""`cprompt info`: what a model has learnt."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cprompt.cli.arguments import MODEL
from cprompt.cli.output import say
from cprompt.errors import some


def info(
    model: Path = MODEL,
    as_json: bool = typer.Option(False, "--json", help="The content of model.json."),
) -> None:
    """Show what a model has learnt, when, from how many photos, and on which backbone."""
    from cprompt.classifier import model_folder

    about = model_folder.read_about(model)
    if as_json:
        print(json.dumps(about, indent=2, ensure_ascii=False))
        return
    console = Console()
    table = Table(box=None, pad_edge=False)
    for column in ("batch", "learnt", "photos", "new", "again", "s"):
        table.add_column(column, justify="right" if column in ("batch", "photos", "s") else "left")
    for batch in about["history"]:
        table.add_row(
            str(batch["number"]),
            batch["when"].replace("T", " ").removesuffix("+00:00"),
            str(sum(batch["photos"].values())),
            escape(some(batch["new"])) if batch["new"] else "",
            escape(some(batch["returning"])) if batch["returning"] else "",
            f"{batch['seconds']:.0f}",
        )
    console.print(table)
    backbone = about["backbone"]
    say(
        f"{len(about['classes'])} classes; {about['method']['name']} on {backbone['name']} "
        f"({backbone['weights']}, {backbone['fingerprint'][:12]})",
        f"about {100 * (1 - about['accept']):.0f} % of known photos are called unknown"
        if about["calibration"]["threshold"]
        else "no photo is called unknown",
        f"{model_folder.size(model) / 2**20:.1f} MiB in {model}, version {about['generation']}",
        console=console,
    )
