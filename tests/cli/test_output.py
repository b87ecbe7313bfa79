"""Lines are printed as they are."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cprompt.cli.output import say


def test_lines_are_neither_wrapped_nor_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    long = "[red]a[/] b " * 100
    say(long, "[/b]")
    assert capsys.readouterr().out == f"{long}\n[/b]\n"


def test_another_console_gets_the_lines() -> None:
    file = io.StringIO()
    say("a", console=Console(file=file))
    assert file.getvalue() == "a\n"
