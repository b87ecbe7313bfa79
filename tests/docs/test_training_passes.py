"""Passes in training, counted in small runs, against counts by hand."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from cprompt.research.tables import load_table, row_config
from tests.scripts import ROOT, load_tool


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("training_passes")


@pytest.mark.parametrize(
    ("label", "once", "every_epoch"),
    [
        ("Nearest mean", 1, 0),
        ("Streaming LDA", 5, 0),  # under five views
        ("CODA-Prompt", 0, 3),  # a query; a prompted pass and a backward one
        ("Joint, whole backbone", 0, 3),  # a pass, a backward one, and a gradient of all weights
    ],
)
def test_passes_are_counted(tool: ModuleType, label: str, once: float, every_epoch: float) -> None:
    [row] = [row for row in load_table("protocol").rows if row.label == label]
    assert tool.per_image(row, "cars10", per_class=1) == (once, every_epoch)


def test_what_was_counted_is_of_the_settings_that_are_chosen_now(tool: ModuleType) -> None:
    counted = json.loads((ROOT / tool.TRAINING_PASSES).read_text("utf-8"))
    rows = load_table("protocol").rows
    assert {b: set(of) for b, of in counted.items()} == {
        b: {row.label for row in rows} for b in tool.IMAGES
    }
    for benchmark, images in tool.IMAGES.items():
        for row in rows:
            found = counted[benchmark][row.label]
            config = row_config(row, benchmark, 1993, overrides=tool.SETTINGS)
            assert found["epochs"] == config.training.epochs, "run tools/training_passes.py"
            per_image = found["once"] + found["every_epoch"] * found["epochs"]
            assert found["passes"] == pytest.approx(per_image * images, rel=1e-3)
