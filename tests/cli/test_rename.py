"""`cprompt rename`: a class has another name, and answers as before."""

from __future__ import annotations

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
    assert "already" in main.error("rename", folder, "new name", before[1])
    assert names(folder) == ["new name", *before[1:]]
