"""Figures that look like things."""

from __future__ import annotations

import pytest

from cprompt.data.datasets.shapes.things import THINGS
from tests.data.datasets.shapes.common import drawn


@pytest.mark.parametrize(
    ("name", "widest"),  # y of the widest row: lowest branches, eaves, deck
    [("tree", 0.65), ("house", -0.1), ("boat", 0.4)],
)
def test_a_thing_is_widest_where_it_should_be(name: str, widest: float) -> None:
    widths = drawn(THINGS[name]).sum(axis=1)
    assert widths.argmax() / 100 - 1 == pytest.approx(widest, abs=0.05)


def test_a_face_has_two_eyes_and_a_mouth() -> None:
    ink = drawn(THINGS["face"])
    assert ink[100, 100]
    for x, y in ((-0.35, -0.25), (0.35, -0.25), (0, 0.45)):
        assert not ink[int(100 + 100 * y), int(100 + 100 * x)]


def test_a_double_arrow_points_both_ways_and_an_arrow_one_way() -> None:
    def overlap_when_turned(name: str) -> float:
        ink = drawn(THINGS[name])
        turned = ink[::-1, ::-1]
        return float((ink & turned).sum() / (ink | turned).sum())

    assert overlap_when_turned("double arrow") > 0.9
    assert overlap_when_turned("arrow") < 0.8
