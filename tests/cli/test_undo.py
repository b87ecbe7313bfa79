"""`cprompt undo`: the model before its last batch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.cli.common import ok


def test_undo_goes_back_a_batch(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    assert ok("undo", folder) == f"{folder} is back to batch 1, 3 classes\n"
    about = json.loads(ok("info", folder, "--json"))
    assert [b["number"] for b in about["history"]] == [1]
    assert about["classes"] == json.loads(ok("info", model, "--json"))["classes"][:3]
