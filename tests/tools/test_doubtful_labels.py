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


def test_what_is_found_in_the_worst_tenth_is_a_share_of_all_wrong_labels(tool: ModuleType) -> None:
    """Three of 30 photos are looked at: two of four wrong ones, the fourth worst is another."""
    p = np.tile([0.8, 0.2], (30, 1))
    for number, own in ((4, 0.3), (9, 0.4), (20, 0.5), (2, 0.6)):
        p[number] = [own, 1 - own]
    wrong = np.zeros(30, dtype=bool)
    wrong[[4, 20, 2, 15]] = True
    found = tool.found_among(p, np.zeros(30, dtype=np.int64), wrong)
    assert found["found_in_the_worst_tenth"] == 50.0
    assert (found["reported"], found["found_in_reported"], found["reported_rightly"]) == (0, 0, 0)
