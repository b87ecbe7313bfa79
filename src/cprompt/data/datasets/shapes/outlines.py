"""Figures that are known by their outline: stars, discs, polygons, flowers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from cprompt.data.datasets.shapes.canvas import (
    SQUARE,
    TRIANGLE,
    Canvas,
    Figure,
    box,
    ellipse,
    polar,
    symmetric,
)


def _polygon(points: ArrayLike) -> Callable[[Canvas], None]:
    return lambda c: c.shape(points)


def _star(c: Canvas, arms: int, low: float, high: float) -> None:
    c.shape(polar([1.0, c.vary(low, high)], arms))


def _ring(c: Canvas) -> None:
    c.stroke(ellipse(0.85, 0.85), closed=True, width=1.6 * c.pen)


def _crescent(c: Canvas) -> None:
    c.disc(0, 0, 0.95)
    c.disc(c.vary(0.35, 0.55), 0, c.vary(0.72, 0.85), ink=0)


def _half_disc(c: Canvas) -> None:
    angle = np.linspace(0, math.pi, 24)
    c.shape(np.stack([np.cos(angle), 0.45 - np.sin(angle)], axis=1))


def _rhombus(c: Canvas) -> None:
    wide = c.vary(0.55, 0.68)
    c.shape([(0, -1), (wide, 0), (0, 1), (-wide, 0)])


def _rectangle(c: Canvas) -> None:
    high = c.vary(0.45, 0.58)
    c.shape(box(-1, -high, 1, high))


def _oval(c: Canvas) -> None:
    c.shape(ellipse(1.0, c.vary(0.5, 0.62)))


def _trapezoid(c: Canvas) -> None:
    top = c.vary(0.35, 0.5)
    c.shape(symmetric([(top, -0.65), (1, 0.65)]))


def _gear(c: Canvas) -> None:
    c.fill(polar([1.0, 1.0, 0.72, 0.72], int(c.rng.integers(8, 11))))
    c.disc(0, 0, c.vary(0.25, 0.35), ink=0)


def _sun(c: Canvas) -> None:
    c.disc(0, 0, 0.5)
    for end in polar([1.0], int(c.rng.integers(8, 11))):
        c.stroke([end * 0.68, end], width=0.7 * c.pen)


def _flower(c: Canvas) -> None:
    for x, y in polar([0.6], int(c.rng.integers(5, 7))):
        c.disc(x, y, 0.36)
    c.disc(0, 0, 0.42)
    c.disc(0, 0, 0.2, ink=0)


def _cross(c: Canvas) -> None:
    w = c.vary(0.22, 0.32)
    c.shape(symmetric([(w, -1), (w, -w), (1, -w), (1, w), (w, w), (w, 1)]))


def _heart(c: Canvas) -> None:
    t = np.linspace(0, 2 * math.pi, 40, endpoint=False)
    x = np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    c.shape(np.stack([x, -y / 16 - 0.1], axis=1))


def _drop(c: Canvas) -> None:
    angle = np.linspace(math.radians(-30), math.radians(210), 30)
    c.shape([(0, -1), *zip(0.62 * np.cos(angle), 0.35 + 0.62 * np.sin(angle), strict=True)])


def _leaf(c: Canvas) -> None:
    x = np.linspace(-0.95, 0.75, 16)
    y = c.vary(0.4, 0.5) * np.sin(np.linspace(0, math.pi, 16))
    c.fill(np.concatenate([np.stack([x, -y], 1), np.stack([x, y], 1)[::-1]]))
    c.stroke([(0.7, 0), (1, 0)], width=0.6 * c.pen)
    c.stroke([(-0.75, 0), (0.55, 0)], width=0.06, ink=0)


OUTLINES: dict[str, Figure] = {
    "disc": Figure(lambda c: c.disc(0, 0, 0.95), 180),
    "five-point star": Figure(partial(_star, arms=5, low=0.38, high=0.5), 180),
    "square": Figure(_polygon(SQUARE)),
    "ring": Figure(_ring, 180),
    "six-point star": Figure(partial(_star, arms=6, low=0.45, high=0.58), 180),
    "rhombus": Figure(_rhombus),
    "crescent": Figure(_crescent, 180),
    "gear": Figure(_gear, 180),
    "rectangle": Figure(_rectangle, 180),
    "hexagon": Figure(_polygon(polar([1.0], 6)), 180),
    "sun": Figure(_sun, 180),
    "pentagon": Figure(_polygon(polar([1.0], 5)), 180),
    "flower": Figure(_flower, 180),
    "cross": Figure(_cross, 12),
    "heart": Figure(_heart),
    "oval": Figure(_oval, 180),
    "triangle": Figure(_polygon(TRIANGLE)),
    "four-point star": Figure(partial(_star, arms=4, low=0.3, high=0.45)),
    "trapezoid": Figure(_trapezoid),
    "half disc": Figure(_half_disc),
    "chevron": Figure(_polygon([(-1, -0.2), (0, -0.9), (1, -0.2), (1, 0.6), (0, -0.1), (-1, 0.6)])),
    "drop": Figure(_drop),
    "hourglass": Figure(_polygon(symmetric([(0.7, -0.9), (0, 0), (0.7, 0.9)]))),
    "leaf": Figure(_leaf, 180),
}
