"""Calling the command line from a test."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cprompt import cli

TINY = [
    *("--backbone", "test_vit"),
    *("--weights", "random:0"),
    *("--backbone.image_size", "48"),
    *("--data.options", "{classes: 6, train_per_class: 4, test_per_class: 2, size: 48}"),
    *("--stream.sizes", "3,1,2"),
    *("--training.epochs", "1"),
    *("--method.length", "2"),
    *("--execution.device", "cpu"),
]
"""A run of `cprompt run shapes` over three unequal tasks, in a second."""

QUICK = ["--training.epochs", "1", "--backbone", "test_vit", "--weights", "random:0"]
"""`cprompt learn` in a second."""


def plain(text: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def squeezed(text: str) -> str:
    """With single spaces."""
    return re.sub(r" +", " ", text)


def ok(*arguments: str | Path) -> str:
    """What a command that succeeds prints on standard output; its errors are raised."""
    result = CliRunner().invoke(cli.app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return plain(result.stdout)


class Main:
    """Runs `main()` as the shell would: exit status, stdout, stderr."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: str | Path) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["cprompt", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = self.capsys.readouterr()
        code = ended.value.code
        return code if isinstance(code, int) else 0, plain(printed.out), plain(printed.err)

    def error(self, *arguments: str | Path) -> str:
        """The message of a command that fails as it should: status 2, one line, no traceback."""
        code, _, err = self(*arguments)
        assert code == 2, err
        assert err.startswith("error: ")
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        return err.removeprefix("error: ").rstrip("\n")
