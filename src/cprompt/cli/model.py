"""`cprompt info` and `cprompt undo`: a model's past."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cprompt.classifier import model_folder
from cprompt.cli import app
from cprompt.errors import some


@app.command()
def info(
    model: Path = typer.Argument(help="A model folder, made by `cprompt learn`."),
    as_json: bool = typer.Option(False, "--json", help="What model.json says."),
) -> None:
    """What a model has learnt, when, from how many photos, and on which backbone."""
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
    backbone, last = about["backbone"], about["history"][-1]
    for line in (
        f"{len(about['classes'])} classes; {about['method']['name']} on {backbone['name']} "
        f"({backbone['weights']}, {backbone['fingerprint'][:12]})",
        f"called unknown under {100 * last['threshold']:.0f} %"
        if last["threshold"]
        else "never called unknown",
        f"{model_folder.size(model) / 2**20:.1f} MiB in {model}, version {about['generation']}",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@app.command()
def undo(model: Path = typer.Argument(help="A model folder, made by `cprompt learn`.")) -> None:
    """Go back to before the last batch; also a way out where the last version is damaged."""
    with model_folder.writing(model):
        model_folder.undo(model)
    about = model_folder.read_about(model)
    Console().print(
        f"{model} is back to batch {about['history'][-1]['number']}, "
        f"{len(about['classes'])} classes",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
