"""`python -m cprompt`."""

from __future__ import annotations

import runpy
import sys

import pytest

import cprompt


def test_the_module_is_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cprompt", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("cprompt", run_name="__main__")
    assert not ended.value.code
    assert capsys.readouterr().out == f"cprompt {cprompt.__version__}\n"
