"""The `cprompt` command: one module per subcommand.

A module reads arguments, calls the package and prints. It imports torch and whatever else is slow
inside its functions, so that help and wrong options are answered at once. `--help` shows the
docstring of a command line by line, so its lines must fit into a terminal of 80 columns.
"""

from __future__ import annotations

import os
import sys

import typer

import cprompt
from cprompt.cli import (
    backbones,
    cache,
    compare,
    demo,
    doctor,
    draw,
    evaluate,
    export,
    forget,
    info,
    learn,
    listing,
    merge,
    predict,
    rename,
    report,
    run,
    serve,
    show,
    suggest,
    table,
    tune,
    undo,
    watch,
)
from cprompt.cli.arguments import ALLOW_BARE_SETTINGS, SettingsGroup
from cprompt.cli.start import collect_garbage_later, keep_freed_memory, let_threads_sleep
from cprompt.errors import ConfigError, CPromptError

app = typer.Typer(
    name="cprompt",
    cls=SettingsGroup,
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
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Image classifiers that keep learning new classes, without keeping old images."""
    processes = os.environ.get("WORLD_SIZE", "1") if _under_torchrun() else "1"
    if processes != "1" and context.invoked_subcommand != "run":
        raise ConfigError(
            f"torchrun would do `cprompt {context.invoked_subcommand}` {processes} times at once",
            hint="start it without torchrun, which is for `cprompt run` only",
        )


# Help shows the commands in this order.
_learn = "Learn from photos"
app.command(rich_help_panel=_learn)(draw.draw)
app.command(rich_help_panel=_learn, context_settings=ALLOW_BARE_SETTINGS)(learn.learn)
app.command(rich_help_panel=_learn)(predict.predict)
app.command(rich_help_panel=_learn)(evaluate.evaluate)
app.command(rich_help_panel=_learn)(suggest.suggest)
app.command(rich_help_panel=_learn)(backbones.backbones)
app.command(rich_help_panel=_learn)(info.info)
app.command(rich_help_panel=_learn)(undo.undo)
app.command(rich_help_panel=_learn)(forget.forget)
app.command(rich_help_panel=_learn)(rename.rename)
app.command(rich_help_panel=_learn)(merge.merge)
app.command(rich_help_panel=_learn)(watch.watch)
app.command(rich_help_panel=_learn)(export.export)
app.command(rich_help_panel=_learn, context_settings=ALLOW_BARE_SETTINGS)(serve.serve)

_research = "Research"
app.command(rich_help_panel=_research)(demo.demo)
app.command(rich_help_panel=_research, context_settings=ALLOW_BARE_SETTINGS)(run.run)
app.command(rich_help_panel=_research, context_settings=ALLOW_BARE_SETTINGS)(table.table)
app.command(rich_help_panel=_research)(tune.tune)
app.command(rich_help_panel=_research)(show.show)
app.command(rich_help_panel=_research)(report.report)
app.command(rich_help_panel=_research)(compare.compare)
app.command("list", rich_help_panel=_research)(listing.list_names)
app.command(rich_help_panel=_research, context_settings=ALLOW_BARE_SETTINGS)(doctor.doctor)

app.command(rich_help_panel="Tools")(cache.cache)


def main() -> None:
    """Run the command line; an error that the user can act on is one message, no traceback."""
    let_threads_sleep()
    keep_freed_memory()
    collect_garbage_later()
    try:
        app()
    except CPromptError as error:
        if _under_torchrun() and not _tells():
            sys.exit(2)
        from rich.console import Console
        from rich.markup import escape

        from cprompt.files import shown_path

        Console(stderr=True).print(
            "[bold red]error:[/]", escape(shown_path(str(error))), highlight=False, soft_wrap=True
        )
        sys.exit(2)
    finally:
        if _under_torchrun():
            from cprompt.ranks import leave

            leave()


def _under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def _tells() -> bool:
    """Of the processes that torchrun started, one reports an error."""
    from cprompt.ranks import tells

    return tells()
