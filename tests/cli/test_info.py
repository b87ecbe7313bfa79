"""`cprompt info`: a model's past."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.common import Main, ok


def test_info_tells_the_past_of_a_model(model: Path) -> None:
    told = ok("info", model)
    assert "5 classes; strata on test_vit" in told
    about = json.loads(ok("info", model, "--json"))
    assert [sum(b["photos"].values()) for b in about["history"]] == [18, 12]
    assert [len(b["new"]) for b in about["history"]] == [3, 2]


def test_a_folder_without_a_model_is_named(main: Main, tmp_path: Path) -> None:
    assert str(tmp_path) in main.error("info", tmp_path)
