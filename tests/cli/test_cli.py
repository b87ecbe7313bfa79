"""The command line as a whole: how fast it starts, its help, its version, its errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
import typer

import cprompt
from cprompt import cli
from tests.cli.common import Main, ok

COMMANDS: dict[str, Any] = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
PANELS = {
    "Learn from photos": "draw learn predict evaluate suggest backbones info undo "
    "forget rename merge watch export serve",
    "Research": "demo run table tune show report compare list doctor",
    "Tools": "cache",
}

# --- start --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answered() -> str:
    """A process that was asked for help of everything, and what is wrong; its errors.

    It may open no socket, look no name up and import nothing slow.
    """
    program = f"""
import contextlib, io, socket, sys

class Blocked(socket.socket):
    def __init__(self, *args, **more):
        raise SystemExit("a socket was opened")

def refuse(*args, **more):
    raise SystemExit("a name was looked up")

socket.socket = Blocked
socket.create_connection = socket.getaddrinfo = socket.gethostbyname = refuse

import cprompt
from cprompt.cli import main

commands = {sorted(COMMANDS)!r}
for words in (
    *([name, "--help"] for name in commands),
    *([name, "--no-such-option"] for name in commands),
    ["--help"], ["--version"], [], ["no-such-command"], ["run"],
    ["run", "cars10", "5"], ["run", "cars10", "--training.epochs"], ["table", "no-such-table"],
):
    sys.argv = ["cprompt", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            assert not isinstance(end.code, str), (words, end.code)
    slow = {{"torch", "timm", "matplotlib", "scipy", "fastapi", "numpy"}} & {{*sys.modules}}
    assert not slow, (words, slow)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == ""
    return done.stderr


def test_help_and_mistakes_are_answered_without_importing_anything_slow(answered: str) -> None:
    assert answered == ""


# --- help and version ---------------------------------------------------------------------------


def test_help_shows_the_commands_in_panels_and_in_order() -> None:
    found: dict[str, list[str]] = {}
    panel = ""
    for line in ok("--help").splitlines():
        if heading := re.match(r"╭─ (.*?) ─", line):
            panel = heading[1]
        elif command := re.match(r"│ ([a-z]+) ", line):
            found.setdefault(panel, []).append(command[1])
    assert found == {name: commands.split() for name, commands in PANELS.items()}
    assert set(COMMANDS) == {name for commands in found.values() for name in commands}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_names_every_option_and_argument(command: str) -> None:
    printed = ok(command, "--help")
    for parameter in COMMANDS[command].params:
        assert parameter.help
        names = parameter.opts if parameter.param_type_name == "option" else [parameter.name]
        assert any(re.search(rf"(?<![\w-]){re.escape(n)}\b", printed, re.I) for n in names), names


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_fits_into_80_columns(command: str) -> None:
    """Its lines are printed as they are, so a longer one would be broken in the middle."""
    lines = (COMMANDS[command].help or "").splitlines()
    assert all(len(line) <= 78 for line in lines[1:])  # the first line is wrapped by itself


def test_the_version() -> None:
    assert ok("--version") == f"cprompt {cprompt.__version__}\n"


# --- errors -------------------------------------------------------------------------------------


def test_an_error_is_one_line_and_status_2(main: Main) -> None:
    assert main.error("show", "nowhere") == "nowhere: does not exist"


def test_an_error_about_a_name_that_looks_like_markup_says_the_name(main: Main) -> None:
    assert main.error("show", "[/b] [red]x") == "[/b] [red]x: does not exist"


@pytest.mark.parametrize(("wanted", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None, found: str
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "")  # so that it is as before afterwards
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", wanted or "")
    if wanted is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(sys, "argv", ["cprompt", "--version"])
    with suppress(SystemExit):
        cli.main()
    assert os.environ["OMP_WAIT_POLICY"] == found
    assert ("GOMP_SPINCOUNT" in os.environ) == (wanted is None)
