"""The canvas: areas are those of geometry."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cprompt.data.datasets.shapes.canvas import Canvas, box, ellipse, polar, symmetric
from tests.data.datasets.shapes.common import UNIT, canvas


def area(made: Canvas) -> float:
    """Of the ink, in units of the figure."""
    return float((np.asarray(made.mask) > 127).sum()) / UNIT**2


def test_filling_erasing_and_clipping_change_the_area() -> None:
    made = canvas()
    made.fill(box(-0.5, -0.5, 0.5, 0.5))
    assert area(made) == pytest.approx(1, rel=0.03)
    made.fill(box(-0.5, -0.5, 0, 0.5), ink=0)
    assert area(made) == pytest.approx(0.5, rel=0.05)
    made.clip(box(-1, 0, 1, 1))
    assert area(made) == pytest.approx(0.25, rel=0.08)


def test_a_disc_is_nearly_round() -> None:
    made = canvas()
    made.disc(0, 0, 0.8)
    assert area(made) == pytest.approx(math.pi * 0.64, rel=0.03)


def test_a_stroke_is_as_wide_as_the_pen_or_as_told_with_round_ends() -> None:
    made = canvas()
    made.stroke([(-0.5, 0), (0.5, 0)])
    assert area(made) == pytest.approx(0.2 + math.pi * 0.01, rel=0.08)
    thin = canvas()
    thin.stroke([(-0.5, 0), (0.5, 0)], width=0.1)
    assert area(thin) == pytest.approx(0.1 + math.pi * 0.0025, rel=0.15)


def test_a_hollow_shape_is_its_outline() -> None:
    solid, hollow = canvas(), canvas(hollow=True)
    for made in (solid, hollow):
        made.shape(box(-0.6, -0.6, 0.6, 0.6))
    assert area(solid) == pytest.approx(1.44, rel=0.03)
    assert area(hollow) == pytest.approx(4 * 1.2 * 0.2, rel=0.1)
    assert np.asarray(hollow.mask)[100, 100] == 0


def test_outlines_have_their_points() -> None:
    assert symmetric([(0.5, -1), (1, 1)]).tolist() == [[0.5, -1], [1, 1], [-1, 1], [-0.5, -1]]
    assert ellipse(2, 1, x=3, corners=4) == pytest.approx(
        np.array([[5, 0], [3, 1], [1, 0], [3, -1]])
    )
    star = polar([1.0, 0.5], 5)
    assert np.hypot(*star.T) == pytest.approx([1.0, 0.5] * 5)
    assert star[0] == pytest.approx([0, -1])  # the first point is up
