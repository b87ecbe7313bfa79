"""`cprompt forget`: a class is gone, and undo brings it back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.cli.common import Main, ok


def names(folder: Path) -> list[str]:
    return [each["name"] for each in json.loads(ok("info", folder, "--json"))["classes"]]


def test_a_class_is_forgotten_and_comes_back(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    before = names(folder)
    said = ok("forget", folder, before[1])
    assert said == f"{folder}: {before[1]} is forgotten, {len(before) - 1} classes stay\n"
    assert names(folder) == [before[0], *before[2:]]
    ok("undo", folder)
    assert names(folder) == before


def test_a_class_that_is_not_there(main: Main, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    assert "the model has no class 'nothing'" in main.error("forget", folder, "nothing")
