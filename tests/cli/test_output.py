"""Lines are printed as they are, tables as asked for; on Ctrl-C a live display says what to do."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.live import Live

from cprompt.cli.output import Format, LiveDisplay, print_table, say


def test_lines_are_neither_wrapped_nor_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    long = "[red]a[/] b " * 100
    say(long, "[/b]")
    assert capsys.readouterr().out == f"{long}\n[/b]\n"


def test_another_console_gets_the_lines() -> None:
    file = io.StringIO()
    say("a", console=Console(file=file))
    assert file.getvalue() == "a\n"


@pytest.mark.parametrize("format", Format)
def test_a_table_is_printed_as_asked_for(
    format: Format, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    print_table(format, lambda width: f"{width} wide", lambda name: f"as {name}")
    expected = "77 wide\n" if format is Format.terminal else f"as {format.value}"
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(("error", "said"), [(KeyboardInterrupt, True), (ValueError, False)])
def test_a_live_display_says_what_to_do_on_an_interrupt_only(
    error: type[BaseException], said: bool
) -> None:
    file = io.StringIO()
    live = Live("at work", console=Console(file=file), transient=True)
    with pytest.raises(error), LiveDisplay(live, "type that again"):
        raise error
    assert not live.is_started
    assert ("type that again" in file.getvalue()) == said
