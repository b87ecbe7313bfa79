"""tools/speed_page.py: its tables say what the files in results/ say."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from tests.report.reader import pipes
from tests.scripts import ROOT, load_tool


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("speed_page")


def test_passes_are_counted_per_image_of_the_record(tool: ModuleType) -> None:
    files = sorted((ROOT / "results" / "speed" / "cars").glob("*.json"))
    head, _, *rows = pipes(tool.block("records/speed/cars"))
    assert len(rows) == len(files) > 0
    place = head.index("passes per image")
    for file, row in zip(files, rows, strict=True):
        record: dict[str, Any] = json.loads(file.read_text("utf-8"))
        images = sum(record["rows"][-1]["count"])
        assert float(row[place]) == pytest.approx(
            sum(record["test_passes"].values()) / images, abs=0.005
        )
        assert row[1] == f"{record['seconds']['preparation']:.0f}"


def test_only_blocks_change_and_others_are_not_touched(tool: ModuleType) -> None:
    page = "before <!-- comment -->\n<!-- cpu/evaluate -->\nold\n<!-- end -->\nafter"
    renewed = tool.render(page)
    assert renewed.startswith("before <!-- comment -->\n<!-- cpu/evaluate -->\n\n| tasks |")
    assert renewed.endswith("<!-- end -->\nafter")
    assert "old" not in renewed
    assert tool.render(renewed) == renewed
