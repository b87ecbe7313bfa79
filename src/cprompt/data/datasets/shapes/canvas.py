"""What figures are drawn on and from: a canvas in the figure's own coordinates, and outlines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageChops, ImageDraw

Points = NDArray[np.float64]


class Canvas:
    """A mask on which a figure is drawn in its own coordinates.

    x points right, y down, and a figure fills about [-1, 1] in both. `pen` is this image's line
    width in those units; `hollow` says whether `shape` draws the outline only.
    """

    def __init__(
        self, side: int, matrix: Points, origin: Points, pen: float, rng: np.random.Generator
    ) -> None:
        self.rng = rng
        self.pen = pen
        self.hollow = bool(rng.random() < 0.3)
        self.mask = Image.new("L", (side, side))
        self._matrix = matrix
        self._origin = origin
        self._scale = math.sqrt(abs(np.linalg.det(matrix)))

    def vary(self, low: float, high: float) -> float:
        """A number that differs between images of one class."""
        return float(self.rng.uniform(low, high))

    def fill(self, points: ArrayLike, ink: int = 255) -> None:
        """Fill the polygon; `ink` 0 erases."""
        ImageDraw.Draw(self.mask).polygon(self._pixels(points), fill=ink)

    def stroke(
        self,
        points: ArrayLike,
        closed: bool = False,
        width: float | None = None,
        ink: int = 255,
    ) -> None:
        """Draw a line through the points, round at its ends, or all the way round if `closed`."""
        pixels = self._pixels(points)
        draw = ImageDraw.Draw(self.mask)
        thick = max(2, round((self.pen if width is None else width) * self._scale))
        if closed:
            pixels += pixels[:2]
        else:
            for x, y in (pixels[0], pixels[-1]):
                half = thick / 2
                draw.ellipse((x - half, y - half, x + half, y + half), fill=ink)
        draw.line(pixels, fill=ink, width=thick, joint="curve")

    def shape(self, points: ArrayLike) -> None:
        """Fill the polygon or, in some images, draw its outline only."""
        if self.hollow:
            self.stroke(points, closed=True)
        else:
            self.fill(points)

    def disc(self, x: float, y: float, radius: float, ink: int = 255) -> None:
        """Fill a disc; it is a polygon of 20 corners."""
        self.fill(ellipse(radius, radius, x, y, corners=20), ink)

    def clip(self, points: ArrayLike) -> None:
        """Erase what lies outside the polygon."""
        inside = Image.new("L", self.mask.size)
        ImageDraw.Draw(inside).polygon(self._pixels(points), fill=255)
        self.mask = ImageChops.multiply(self.mask, inside)

    def _pixels(self, points: ArrayLike) -> list[tuple[float, float]]:
        placed = np.asarray(points, dtype=np.float64) @ self._matrix.T + self._origin
        return [(x, y) for x, y in placed.tolist()]


@dataclass(frozen=True)
class Figure:
    """How a class is drawn; it may turn by `turn` degrees either way and still be that class."""

    draw: Callable[[Canvas], None]
    turn: float = 20.0


def ellipse(a: float, b: float, x: float = 0.0, y: float = 0.0, corners: int = 40) -> Points:
    """An ellipse around (x, y) as a polygon; `a` and `b` are half its width and height."""
    angle = np.arange(corners) * (2 * math.pi / corners)
    return np.stack([x + a * np.cos(angle), y + b * np.sin(angle)], axis=1)


def polar(radii: Sequence[float], repeat: int) -> Points:
    """A closed outline whose distance from the centre runs through `radii`, `repeat` times."""
    radius = np.tile(np.asarray(radii, dtype=np.float64), repeat)
    angle = np.arange(len(radius)) * (2 * math.pi / len(radius)) - math.pi / 2
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def box(left: float, top: float, right: float, bottom: float) -> Points:
    """The four corners of a rectangle."""
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


def symmetric(right_half: Sequence[tuple[float, float]]) -> Points:
    """The outline whose right half, from top to bottom, is given; the left half mirrors it."""
    half = np.array(right_half)
    return np.concatenate([half, half[::-1] * (-1, 1)])


SQUARE = box(-0.85, -0.85, 0.85, 0.85)
TRIANGLE = polar([1.05], 3) + np.array([0, 0.2])
DISC = ellipse(0.95, 0.95)
