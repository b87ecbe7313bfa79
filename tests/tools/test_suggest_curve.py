"""tools/suggest_curve.py, whose numbers the guide shows."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.scripts import load_tool


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("suggest_curve")


def test_the_first_photos_are_as_many_of_each_class(tool: ModuleType) -> None:
    targets = np.array([0, 1, 1, 0, 2, 2, 2, 0, 1])
    chosen = tool.first_photos(targets, 2, seed=3)
    assert len(set(chosen.tolist())) == 6
    assert np.bincount(targets[chosen]).tolist() == [2, 2, 2]


def test_each_rule_chooses_as_many_different_photos(tool: ModuleType) -> None:
    rng = np.random.default_rng(0)
    p, familiar = rng.dirichlet(np.ones(4), 50), rng.random(50)
    for rule in tool.RULES.values():
        chosen = rule(p, familiar, 7, 0).tolist()
        assert len(set(chosen)) == len(chosen) == 7
    ahead = [row[-1] - row[-2] for row in np.sort(p, axis=1)]
    assert tool.least_sure(p, familiar, 7, 0).tolist() == np.argsort(ahead)[:7].tolist()


def test_random_photos_for_the_same_accuracy_are_read_off_the_curve(tool: ModuleType) -> None:
    curves = {"random": [10.0, 20.0, 40.0], "suggested": [10.0, 30.0, 50.0]}
    assert tool.equal_random(curves, [2, 4, 8], 2) == 2
    assert tool.equal_random(curves, [2, 4, 8], 4) == 6
    assert tool.equal_random(curves, [2, 4, 8], 8) is None
