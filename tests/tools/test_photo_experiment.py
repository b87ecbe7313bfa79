"""tools/photo_experiment.py: where the result of an experiment goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cprompt.errors import CPromptError
from tests.scripts import load_tool

tool = load_tool("photo_experiment")


@pytest.mark.parametrize(("more", "name"), [([], "cars"), (["--name", "mine"], "mine")])
def test_a_result_is_named_after_its_data_unless_told(
    more: list[str], name: str, tmp_path: Path
) -> None:
    options = tool.options_of("What it finds.\n\nMore.", str(tmp_path / "results"))
    assert options.description == "What it finds."
    result = tool.Result(options.parse_args(["--data", str(tmp_path / "cars"), *more]))
    result.write(mean=1.5)
    written = json.loads((tmp_path / "results" / f"{name}.json").read_text())
    assert written == {"name": name, "mean": 1.5}


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    options = tool.options_of("", str(tmp_path / "taken"))
    with pytest.raises(CPromptError, match="taken"):
        tool.Result(options.parse_args(["--data", str(tmp_path)]))
