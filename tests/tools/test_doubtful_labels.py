"""tools/doubtful_labels.py, whose numbers the guide shows."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.scripts import load_tool


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("doubtful_labels")


def test_a_share_of_the_labels_is_made_wrong_and_no_other_changes(tool: ModuleType) -> None:
    targets = np.repeat(np.arange(4), 50)
    labels, wrong = tool.planted(targets, 4, 0.05, seed=1)
    assert wrong.sum() == 10
    assert (labels != targets).tolist() == wrong.tolist()
    assert set(labels.tolist()) <= set(range(4))


def test_what_is_found_is_counted(tool: ModuleType) -> None:
    """20 photos of class 0, two of them wrong: one is the least probable, one looks right."""
    p = np.tile([0.8, 0.2], (20, 1))
    p[3], p[7] = [0.001, 0.999], [0.005, 0.995]
    wrong = np.zeros(20, dtype=bool)
    wrong[[3, 11]] = True
    assert tool.found_among(p, np.zeros(20, dtype=np.int64), wrong) == {
        "found_in_the_worst_tenth": 50.0,
        "reported": 2,
        "found_in_reported": 50.0,
        "reported_rightly": 50.0,
    }
