"""The `cprompt` command."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

import cprompt
from cprompt.errors import CPromptError

app = typer.Typer(
    name="cprompt",
    help="Image classifiers that keep learning new classes, without keeping old images.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cprompt {cprompt.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Image classifiers that keep learning new classes, without keeping old images."""


# Each of these registers its command.
from cprompt.cli import (  # noqa: E402, F401
    cache,
    compare,
    demo,
    doctor,
    draw,
    evaluate,
    export,
    learn,
    lists,
    model,
    predict,
    report,
    run,
    serve,
    show,
    table,
)


def main() -> None:
    """Run the command line; an error that the user can act on is one message, no traceback."""
    try:
        app()
    except CPromptError as error:
        Console(stderr=True).print(
            "[bold red]error:[/]", escape(str(error)), highlight=False, soft_wrap=True
        )
        sys.exit(2)
