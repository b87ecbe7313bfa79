"""Figures made of lines, bars and dots: letters, spirals, grids, patterns of dots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from cprompt.data.datasets.shapes.canvas import (
    SQUARE,
    Canvas,
    Figure,
    box,
    ellipse,
    polar,
)


def _lines(*strokes: Sequence[tuple[float, float]]) -> Callable[[Canvas], None]:
    def draw(c: Canvas) -> None:
        for stroke in strokes:
            c.stroke(stroke, width=1.4 * c.pen)

    return draw


def _zigzag(c: Canvas) -> None:
    x = np.linspace(-1, 1, int(c.rng.integers(6, 9)))
    y = np.where(np.arange(len(x)) % 2, -0.4, 0.4)
    c.stroke(np.stack([x, y], axis=1))


def _wave(c: Canvas) -> None:
    x = np.linspace(-1, 1, 40)
    y = 0.4 * np.sin(x * math.pi * c.vary(2.2, 3.2))
    c.stroke(np.stack([x, y], axis=1))


def _spiral(c: Canvas) -> None:
    t = np.linspace(0.05, 1, 60)
    angle = 2 * math.pi * c.vary(2.3, 2.8) * t
    c.stroke(np.stack([t * np.cos(angle), t * np.sin(angle)], axis=1), width=0.9 * c.pen)


def _bulls_eye(c: Canvas) -> None:
    c.stroke(ellipse(0.9, 0.9), closed=True)
    c.disc(0, 0, c.vary(0.4, 0.5))


def _nested_squares(c: Canvas) -> None:
    c.stroke(SQUARE, closed=True)
    half = c.vary(0.35, 0.45)
    c.fill(box(-half, -half, half, half))


def _grid(c: Canvas) -> None:
    for at in (-0.33, 0.33):
        c.stroke([(at, -0.95), (at, 0.95)])
        c.stroke([(-0.95, at), (0.95, at)])


def _ladder(c: Canvas) -> None:
    for x in (-0.4, 0.4):
        c.stroke([(x, -1), (x, 1)])
    for y in np.linspace(-0.7, 0.7, int(c.rng.integers(4, 6))):
        c.stroke([(-0.4, y), (0.4, y)], width=0.8 * c.pen)


def _bars(c: Canvas) -> None:
    for x in (-0.7, 0.0, 0.7):
        c.fill(box(x - 0.18, -0.85, x + 0.18, 0.85))


def _ring_of_dots(c: Canvas) -> None:
    for x, y in polar([0.78], int(c.rng.integers(8, 10))):
        c.disc(x, y, 0.19)


def _quincunx(c: Canvas) -> None:
    for x, y in ((-0.65, -0.65), (0.65, -0.65), (0, 0), (-0.65, 0.65), (0.65, 0.65)):
        c.disc(x, y, 0.25)


LINES: dict[str, Figure] = {
    "zigzag": Figure(_zigzag),
    "letter T": Figure(_lines([(-0.8, -0.85), (0.8, -0.85)], [(0, -0.85), (0, 0.95)])),
    "spiral": Figure(_spiral, 180),
    "letter Y": Figure(
        _lines([(-0.75, -0.9), (0, 0)], [(0.75, -0.9), (0, 0)], [(0, 0), (0, 0.95)])
    ),
    "bull's eye": Figure(_bulls_eye, 180),
    "wave": Figure(_wave),
    "letter H": Figure(
        _lines([(-0.6, -0.95), (-0.6, 0.95)], [(0.6, -0.95), (0.6, 0.95)], [(-0.6, 0), (0.6, 0)])
    ),
    "nested squares": Figure(_nested_squares),
    "saltire": Figure(_lines([(-0.85, -0.85), (0.85, 0.85)], [(-0.85, 0.85), (0.85, -0.85)]), 12),
    "letter A": Figure(
        _lines([(-0.8, 0.95), (0, -0.95)], [(0.8, 0.95), (0, -0.95)], [(-0.45, 0.3), (0.45, 0.3)])
    ),
    "ring of dots": Figure(_ring_of_dots, 180),
    "grid": Figure(_grid),
    "quincunx": Figure(_quincunx),
    "ladder": Figure(_ladder),
    "three bars": Figure(_bars, 180),
}
