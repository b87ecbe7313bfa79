"""Figures known by their outline, measured."""

from __future__ import annotations

import math

import pytest

from cprompt.data.datasets.shapes.outlines import OUTLINES
from tests.data.datasets.shapes.common import drawn


@pytest.mark.parametrize(
    ("name", "area"),
    [
        ("square", 1.7**2),
        ("hexagon", 1.5 * math.sqrt(3)),
        ("pentagon", 2.5 * math.sin(math.radians(72))),
        ("triangle", 0.75 * math.sqrt(3) * 1.05**2),
        ("hourglass", 0.7 * 1.8),
        ("half disc", math.pi / 2),
    ],
)
def test_areas_are_those_of_geometry(name: str, area: float) -> None:
    assert 4 * drawn(OUTLINES[name]).mean() == pytest.approx(area, rel=0.03)


def test_more_arms_fill_more_of_a_star() -> None:
    arms = ("four-point star", "five-point star", "six-point star")
    areas = [drawn(OUTLINES[name]).mean() for name in arms]
    assert areas == sorted(areas)


def test_a_ring_is_a_disc_with_a_hole() -> None:
    disc, ring = drawn(OUTLINES["disc"]), drawn(OUTLINES["ring"])
    assert disc[100, 100]
    assert not ring[100, 100]
    assert 4 * ring.mean() == pytest.approx(2 * math.pi * 0.85 * 1.6 * 0.2, rel=0.05)
