"""What the tests of several commands start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.common import QUICK, TINY, Main, ok


@pytest.fixture(autouse=True)
def _wide_and_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lines are not wrapped, and what a command leaves goes nowhere near the repository."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    return Main(monkeypatch, capsys)


@pytest.fixture(scope="session")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run with every mode, and what was printed."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "300")
        printed = ok(
            *("run", "shapes", *TINY),
            *("--evaluation.modes", "selected,given,first", "--out", folder),
        )
    return folder, printed


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn photos: 3 classes in january, 2 in february, both in test."""
    folder = tmp_path_factory.mktemp("drawn") / "photos"
    ok("draw", folder, "--classes", "5", "--photos", "6", "--test", "2")
    return folder


@pytest.fixture(scope="session")
def model(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learnt both batches; not to be changed."""
    folder = tmp_path_factory.mktemp("learnt") / "model"
    ok("learn", folder, photos / "january", *QUICK)
    ok("learn", folder, photos / "february", "--weights", "random:0")
    return folder
