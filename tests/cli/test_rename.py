"""`cprompt rename`: a class has another name, and answers as before."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from tests.cli.common import Main, ok
from tests.cli.test_forget import names


def test_a_class_gets_another_name(main: Main, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    before = names(folder)
    assert ok("rename", folder, before[0], "new name") == (
        f"{folder}: {before[0]} is called new name now\n"
    )
    assert names(folder) == ["new name", *before[1:]]
    for new in (before[1], before[1].upper()):
        said = main.error("rename", folder, "new name", new)
        assert f"there is a class '{before[1]}' already; choose another name" in said
        assert f"`cprompt rename MODEL 'new name' {shlex.quote(before[1])} --merge`" in said
    assert names(folder) == ["new name", *before[1:]]


def test_two_classes_become_one(main: Main, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    first, second, *others = names(folder)
    ok("rename", folder, first, second, "--merge")
    assert names(folder) == [second, *others]
    assert ok("info", folder, "--classes").splitlines()[1].split()[-2:] == ["12", "1"]
    assert "no class" in main.error("rename", folder, second, "nothing", "--merge")
    assert f"class '{first}' is there again" in ok("undo", folder)
