"""Images drawn by this module: a dataset that needs no file, no download and no licence.

Sixty classes of figure: outlines, textures and arrangements, in families of near neighbours
(stars, gear, sun, flower; disc, ring, crescent; square, rhombus, rectangle). Colour, place, size,
angle, mirror image, background, line width, blur, noise and small clutter vary from image to
image and say nothing about the class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from cprompt.data.image_set import Dataset, ImageSet
from cprompt.errors import ConfigError
from cprompt.seeds import mix

_SUPERSAMPLING = 3
_LUMA = np.array([0.299, 0.587, 0.114])
_PARTS = {"train": 0, "test": 1}

Points = NDArray[np.float64]


class _Canvas:
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
        ImageDraw.Draw(self.mask).polygon(self._pixels(points), fill=ink)

    def stroke(
        self,
        points: ArrayLike,
        closed: bool = False,
        width: float | None = None,
        ink: int = 255,
    ) -> None:
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
        self.fill(_ellipse(radius, radius, x, y, corners=20), ink)

    def clip(self, points: ArrayLike) -> None:
        """Erase what lies outside the polygon."""
        inside = Image.new("L", self.mask.size)
        ImageDraw.Draw(inside).polygon(self._pixels(points), fill=255)
        self.mask = ImageChops.multiply(self.mask, inside)

    def _pixels(self, points: ArrayLike) -> list[tuple[float, float]]:
        placed = np.asarray(points, dtype=np.float64) @ self._matrix.T + self._origin
        return [(x, y) for x, y in placed.tolist()]


@dataclass(frozen=True)
class _Figure:
    """How a class is drawn, and how many degrees it may turn either way without changing class."""

    draw: Callable[[_Canvas], None]
    turn: float = 20.0


# Outlines ------------------------------------------------------------------------------------


def _ellipse(a: float, b: float, x: float = 0.0, y: float = 0.0, corners: int = 40) -> Points:
    angle = np.arange(corners) * (2 * math.pi / corners)
    return np.stack([x + a * np.cos(angle), y + b * np.sin(angle)], axis=1)


def _polar(radii: Sequence[float], repeat: int) -> Points:
    """A closed outline whose distance from the centre runs through `radii`, `repeat` times."""
    radius = np.tile(np.asarray(radii, dtype=np.float64), repeat)
    angle = np.arange(len(radius)) * (2 * math.pi / len(radius)) - math.pi / 2
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def _box(left: float, top: float, right: float, bottom: float) -> Points:
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


def _symmetric(right_half: Sequence[tuple[float, float]]) -> Points:
    """The outline whose right half, from top to bottom, is given; the left half mirrors it."""
    half = np.array(right_half)
    return np.concatenate([half, half[::-1] * (-1, 1)])


_SQUARE = _box(-0.85, -0.85, 0.85, 0.85)
_TRIANGLE = _polar([1.05], 3) + np.array([0, 0.2])
_DISC = _ellipse(0.95, 0.95)


def _polygon(points: ArrayLike) -> Callable[[_Canvas], None]:
    return lambda c: c.shape(points)


def _star(c: _Canvas, arms: int, low: float, high: float) -> None:
    c.shape(_polar([1.0, c.vary(low, high)], arms))


def _ring(c: _Canvas) -> None:
    c.stroke(_ellipse(0.85, 0.85), closed=True, width=1.6 * c.pen)


def _crescent(c: _Canvas) -> None:
    c.disc(0, 0, 0.95)
    c.disc(c.vary(0.35, 0.55), 0, c.vary(0.72, 0.85), ink=0)


def _half_disc(c: _Canvas) -> None:
    angle = np.linspace(0, math.pi, 24)
    c.shape(np.stack([np.cos(angle), 0.45 - np.sin(angle)], axis=1))


def _rhombus(c: _Canvas) -> None:
    wide = c.vary(0.55, 0.68)
    c.shape([(0, -1), (wide, 0), (0, 1), (-wide, 0)])


def _rectangle(c: _Canvas) -> None:
    high = c.vary(0.45, 0.58)
    c.shape(_box(-1, -high, 1, high))


def _oval(c: _Canvas) -> None:
    c.shape(_ellipse(1.0, c.vary(0.5, 0.62)))


def _trapezoid(c: _Canvas) -> None:
    top = c.vary(0.35, 0.5)
    c.shape(_symmetric([(top, -0.65), (1, 0.65)]))


def _gear(c: _Canvas) -> None:
    c.fill(_polar([1.0, 1.0, 0.72, 0.72], int(c.rng.integers(8, 11))))
    c.disc(0, 0, c.vary(0.25, 0.35), ink=0)


def _sun(c: _Canvas) -> None:
    c.disc(0, 0, 0.5)
    for end in _polar([1.0], int(c.rng.integers(8, 11))):
        c.stroke([end * 0.68, end], width=0.7 * c.pen)


def _flower(c: _Canvas) -> None:
    for x, y in _polar([0.6], int(c.rng.integers(5, 7))):
        c.disc(x, y, 0.36)
    c.disc(0, 0, 0.42)
    c.disc(0, 0, 0.2, ink=0)


def _cross(c: _Canvas) -> None:
    w = c.vary(0.22, 0.32)
    c.shape(_symmetric([(w, -1), (w, -w), (1, -w), (1, w), (w, w), (w, 1)]))


def _heart(c: _Canvas) -> None:
    t = np.linspace(0, 2 * math.pi, 40, endpoint=False)
    x = np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    c.shape(np.stack([x, -y / 16 - 0.1], axis=1))


def _drop(c: _Canvas) -> None:
    angle = np.linspace(math.radians(-30), math.radians(210), 30)
    c.shape([(0, -1), *zip(0.62 * np.cos(angle), 0.35 + 0.62 * np.sin(angle), strict=True)])


def _leaf(c: _Canvas) -> None:
    x = np.linspace(-0.95, 0.75, 16)
    y = c.vary(0.4, 0.5) * np.sin(np.linspace(0, math.pi, 16))
    c.fill(np.concatenate([np.stack([x, -y], 1), np.stack([x, y], 1)[::-1]]))
    c.stroke([(0.7, 0), (1, 0)], width=0.6 * c.pen)
    c.stroke([(-0.75, 0), (0.55, 0)], width=0.06, ink=0)


# Lines ---------------------------------------------------------------------------------------


def _lines(*strokes: Sequence[tuple[float, float]]) -> Callable[[_Canvas], None]:
    def draw(c: _Canvas) -> None:
        for stroke in strokes:
            c.stroke(stroke, width=1.4 * c.pen)

    return draw


def _zigzag(c: _Canvas) -> None:
    x = np.linspace(-1, 1, int(c.rng.integers(6, 9)))
    y = np.where(np.arange(len(x)) % 2, -0.4, 0.4)
    c.stroke(np.stack([x, y], axis=1))


def _wave(c: _Canvas) -> None:
    x = np.linspace(-1, 1, 40)
    y = 0.4 * np.sin(x * math.pi * c.vary(2.2, 3.2))
    c.stroke(np.stack([x, y], axis=1))


def _spiral(c: _Canvas) -> None:
    t = np.linspace(0.05, 1, 60)
    angle = 2 * math.pi * c.vary(2.3, 2.8) * t
    c.stroke(np.stack([t * np.cos(angle), t * np.sin(angle)], axis=1), width=0.9 * c.pen)


def _bulls_eye(c: _Canvas) -> None:
    c.stroke(_ellipse(0.9, 0.9), closed=True)
    c.disc(0, 0, c.vary(0.4, 0.5))


def _nested_squares(c: _Canvas) -> None:
    c.stroke(_SQUARE, closed=True)
    half = c.vary(0.35, 0.45)
    c.fill(_box(-half, -half, half, half))


def _grid(c: _Canvas) -> None:
    for at in (-0.33, 0.33):
        c.stroke([(at, -0.95), (at, 0.95)])
        c.stroke([(-0.95, at), (0.95, at)])


def _ladder(c: _Canvas) -> None:
    for x in (-0.4, 0.4):
        c.stroke([(x, -1), (x, 1)])
    for y in np.linspace(-0.7, 0.7, int(c.rng.integers(4, 6))):
        c.stroke([(-0.4, y), (0.4, y)], width=0.8 * c.pen)


def _bars(c: _Canvas) -> None:
    for x in (-0.7, 0.0, 0.7):
        c.fill(_box(x - 0.18, -0.85, x + 0.18, 0.85))


def _ring_of_dots(c: _Canvas) -> None:
    for x, y in _polar([0.78], int(c.rng.integers(8, 10))):
        c.disc(x, y, 0.19)


def _quincunx(c: _Canvas) -> None:
    for x, y in ((-0.65, -0.65), (0.65, -0.65), (0, 0), (-0.65, 0.65), (0.65, 0.65)):
        c.disc(x, y, 0.25)


# Things --------------------------------------------------------------------------------------


def _arrow(c: _Canvas) -> None:
    w, head = c.vary(0.15, 0.25), c.vary(0.1, 0.3)
    c.shape([(-1, -w), (head, -w), (head, -0.6), (1, 0), (head, 0.6), (head, w), (-1, w)])


def _double_arrow(c: _Canvas) -> None:
    w, head = c.vary(0.15, 0.22), 0.4
    right = [(head, -w), (head, -0.6), (1, 0), (head, 0.6), (head, w)]
    c.shape(right + [(-x, -y) for x, y in right])


def _house(c: _Canvas) -> None:
    c.fill(_symmetric([(0, -0.95), (1, -0.1), (0.75, -0.1), (0.75, 0.9)]))
    door = c.vary(-0.35, 0.35)
    c.fill(_box(door - 0.2, 0.25, door + 0.2, 0.9), ink=0)


def _fish(c: _Canvas) -> None:
    c.fill(_ellipse(0.68, c.vary(0.38, 0.48), x=0.25))
    c.fill([(-0.3, 0), (-0.95, -0.5), (-0.8, 0), (-0.95, 0.5)])
    c.disc(0.62, -0.1, 0.1, ink=0)


def _tree(c: _Canvas) -> None:
    for top, wide in ((-1.0, 0.5), (-0.55, 0.65), (-0.1, 0.8)):
        c.fill([(0, top), (wide, top + 0.75), (-wide, top + 0.75)])
    c.fill(_box(-0.14, 0.6, 0.14, 1.0))


def _key(c: _Canvas) -> None:
    c.stroke(_ellipse(0.33, 0.33, x=-0.6), closed=True)
    c.stroke([(-0.25, 0), (0.95, 0)])
    c.stroke([(0.9, 0), (0.9, 0.35)])
    c.stroke([(0.5, 0), (0.5, 0.35)])


def _mushroom(c: _Canvas) -> None:
    angle = np.linspace(0, math.pi, 24)
    c.fill(np.stack([0.95 * np.cos(angle), 0.1 - np.sin(angle)], axis=1))
    stem = c.vary(0.2, 0.32)
    c.fill(_symmetric([(stem, 0.1), (stem + 0.08, 0.95)]))


def _umbrella(c: _Canvas) -> None:
    angle = np.linspace(0, math.pi, 24)
    c.fill(np.stack([np.cos(angle), 0.05 - 0.9 * np.sin(angle)], axis=1))
    for x in (-0.66, 0.0, 0.66):
        c.disc(x, 0.1, 0.26, ink=0)
    c.stroke([(0, -0.1), (0, 0.8), (0.12, 0.93), (0.3, 0.8)], width=0.7 * c.pen)


def _cup(c: _Canvas) -> None:
    c.stroke(_ellipse(0.35, 0.38, x=0.5), closed=True)
    c.fill(_box(-0.85, -0.75, 0.45, 0.8))


def _boat(c: _Canvas) -> None:
    c.fill(_symmetric([(1, 0.4), (0.65, 0.9)]))
    c.fill([(0.08, -1), (0.85, 0.25), (0.08, 0.25)])
    c.fill([(-0.08, -0.75), (-0.08, 0.25), (-0.65, 0.25)])


def _anchor(c: _Canvas) -> None:
    c.stroke(_ellipse(0.2, 0.2, y=-0.75), closed=True, width=0.8 * c.pen)
    c.stroke([(0, -0.5), (0, 0.85)])
    c.stroke([(-0.4, -0.25), (0.4, -0.25)])
    angle = np.linspace(0, math.pi, 16)
    c.stroke(np.stack([0.8 * np.cos(angle), 0.2 + 0.68 * np.sin(angle)], axis=1))


def _butterfly(c: _Canvas) -> None:
    for x in (-0.5, 0.5):
        c.fill(_ellipse(0.45, 0.5, x, -0.38))
        c.fill(_ellipse(0.35, 0.4, 0.85 * x, 0.45))
    c.stroke([(0, -0.7), (0, 0.75)], width=0.8 * c.pen)


def _face(c: _Canvas) -> None:
    c.disc(0, 0, 0.95)
    for x in (-0.35, 0.35):
        c.disc(x, -0.25, 0.17, ink=0)
    angle = np.linspace(math.radians(15), math.radians(165), 16)
    mouth = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    c.fill(np.concatenate([mouth * (0.6, 0.6), mouth[::-1] * (0.6, 0.3)]), ink=0)


# Textures ------------------------------------------------------------------------------------


def _stripes(c: _Canvas) -> None:
    edges = np.linspace(-1, 1, 2 * int(c.rng.integers(4, 6)))
    for top, bottom in zip(edges[::2], edges[1::2], strict=True):
        c.fill(_box(-1.1, top, 1.1, bottom))


def _checks(c: _Canvas) -> None:
    count = int(c.rng.integers(4, 6))
    edges = np.linspace(-1, 1, count + 1)
    for row in range(count):
        for column in range(row % 2, count, 2):
            c.fill(_box(edges[column], edges[row], edges[column + 1], edges[row + 1]))


def _polka(c: _Canvas) -> None:
    step = c.vary(0.44, 0.52)
    for row in range(-2, 3):
        for column in range(-3, 3):
            c.disc((column + 0.5 * (row % 2)) * step, row * step, 0.33 * step)


def _textured(pattern: Callable[[_Canvas], None], outline: Points) -> Callable[[_Canvas], None]:
    def draw(c: _Canvas) -> None:
        pattern(c)
        c.clip(outline)
        c.stroke(outline, closed=True, width=0.1)

    return draw


_FIGURES: dict[str, _Figure] = {
    "disc": _Figure(lambda c: c.disc(0, 0, 0.95), 180),
    "five-point star": _Figure(partial(_star, arms=5, low=0.38, high=0.5), 180),
    "square": _Figure(_polygon(_SQUARE)),
    "key": _Figure(_key, 180),
    "ring": _Figure(_ring, 180),
    "six-point star": _Figure(partial(_star, arms=6, low=0.45, high=0.58), 180),
    "rhombus": _Figure(_rhombus),
    "fish": _Figure(_fish),
    "crescent": _Figure(_crescent, 180),
    "gear": _Figure(_gear, 180),
    "rectangle": _Figure(_rectangle, 180),
    "house": _Figure(_house),
    "hexagon": _Figure(_polygon(_polar([1.0], 6)), 180),
    "sun": _Figure(_sun, 180),
    "striped square": _Figure(_textured(_stripes, _SQUARE), 180),
    "tree": _Figure(_tree),
    "pentagon": _Figure(_polygon(_polar([1.0], 5)), 180),
    "flower": _Figure(_flower, 180),
    "checkerboard disc": _Figure(_textured(_checks, _DISC), 180),
    "arrow": _Figure(_arrow, 180),
    "cross": _Figure(_cross, 12),
    "zigzag": _Figure(_zigzag),
    "dotted triangle": _Figure(_textured(_polka, _TRIANGLE)),
    "heart": _Figure(_heart),
    "letter T": _Figure(_lines([(-0.8, -0.85), (0.8, -0.85)], [(0, -0.85), (0, 0.95)])),
    "spiral": _Figure(_spiral, 180),
    "checkerboard square": _Figure(_textured(_checks, _SQUARE)),
    "oval": _Figure(_oval, 180),
    "letter Y": _Figure(
        _lines([(-0.75, -0.9), (0, 0)], [(0.75, -0.9), (0, 0)], [(0, 0), (0, 0.95)])
    ),
    "dotted disc": _Figure(_textured(_polka, _DISC), 180),
    "triangle": _Figure(_polygon(_TRIANGLE)),
    "bull's eye": _Figure(_bulls_eye, 180),
    "wave": _Figure(_wave),
    "mushroom": _Figure(_mushroom),
    "four-point star": _Figure(partial(_star, arms=4, low=0.3, high=0.45)),
    "striped disc": _Figure(_textured(_stripes, _DISC), 180),
    "letter H": _Figure(
        _lines([(-0.6, -0.95), (-0.6, 0.95)], [(0.6, -0.95), (0.6, 0.95)], [(-0.6, 0), (0.6, 0)])
    ),
    "double arrow": _Figure(_double_arrow, 180),
    "trapezoid": _Figure(_trapezoid),
    "nested squares": _Figure(_nested_squares),
    "umbrella": _Figure(_umbrella),
    "saltire": _Figure(_lines([(-0.85, -0.85), (0.85, 0.85)], [(-0.85, 0.85), (0.85, -0.85)]), 12),
    "dotted square": _Figure(_textured(_polka, _SQUARE)),
    "half disc": _Figure(_half_disc),
    "letter A": _Figure(
        _lines([(-0.8, 0.95), (0, -0.95)], [(0.8, 0.95), (0, -0.95)], [(-0.45, 0.3), (0.45, 0.3)])
    ),
    "ring of dots": _Figure(_ring_of_dots, 180),
    "chevron": _Figure(
        _polygon([(-1, -0.2), (0, -0.9), (1, -0.2), (1, 0.6), (0, -0.1), (-1, 0.6)])
    ),
    "cup": _Figure(_cup),
    "striped triangle": _Figure(_textured(_stripes, _TRIANGLE)),
    "drop": _Figure(_drop),
    "hourglass": _Figure(_polygon(_symmetric([(0.7, -0.9), (0, 0), (0.7, 0.9)]))),
    "boat": _Figure(_boat),
    "grid": _Figure(_grid),
    "quincunx": _Figure(_quincunx),
    "face": _Figure(_face),
    "leaf": _Figure(_leaf, 180),
    "anchor": _Figure(_anchor),
    "ladder": _Figure(_ladder),
    "butterfly": _Figure(_butterfly),
    "three bars": _Figure(_bars, 180),
}
CLASSES: tuple[str, ...] = tuple(_FIGURES)


# Images ------------------------------------------------------------------------------------


def draw_image(
    name: str, part: str, index: int, *, size: int = 64, seed: int = 0, difficulty: float = 1.0
) -> NDArray[np.uint8]:
    """Image `index` of class `name` in `part` ("train" or "test"), shape (size, size, 3).

    A pure function of its arguments: it does not depend on which or how many others are drawn.
    Another size shows the same scene, but for the noise. `difficulty`, from 0 to 1, scales every
    nuisance; at 0 the figure stands large, upright and sharp on a flat ground of good contrast.
    """
    rng = np.random.default_rng(mix(seed, CLASSES.index(name), _PARTS[part], index))
    ink, ground, other = _colours(rng, difficulty)
    speck = rng.random(3)
    pixels = ground + difficulty * _background(rng, size)[..., None] * (other - ground)
    pixels = _paint(pixels, _figure(rng, _FIGURES[name], size, difficulty), ink)
    pixels = _paint(pixels, _clutter(rng, size, difficulty), speck)
    image = Image.fromarray((255 * pixels).astype(np.uint8))
    image = image.filter(ImageFilter.GaussianBlur(difficulty * rng.uniform(0, 0.9) * size / 64))
    grain = 255 * difficulty * rng.uniform(0, 0.08)
    noisy = np.asarray(image, np.float64) + grain * rng.standard_normal((size, size, 3))
    return noisy.clip(0, 255).astype(np.uint8)


def _paint(pixels: NDArray[np.float64], mask: Image.Image, colour: Points) -> NDArray[np.float64]:
    alpha = np.asarray(mask.reduce(_SUPERSAMPLING), dtype=np.float64)[..., None] / 255
    return pixels + alpha * (colour - pixels)


def _colours(rng: np.random.Generator, difficulty: float) -> tuple[Points, Points, Points]:
    """A colour for the figure and two for the ground, both darker or both lighter than it."""
    contrast = 0.45 - 0.25 * difficulty
    ink = rng.random(3)
    side = 1 if ink @ _LUMA < 0.5 else -1

    def apart() -> Points:
        while True:
            colour = rng.random(3)
            if side * ((colour - ink) @ _LUMA) >= contrast:
                return colour

    return ink, apart(), apart()


def _background(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """How much of the second ground colour each pixel shows, in [0, 1], shape (size, size)."""
    at = (np.arange(size) + 0.5) / size
    kind = rng.choice(["flat", "texture", "blobs", "gradient", "stripes"])
    if kind == "flat":
        return np.zeros((size, size))
    if kind == "texture":
        coarse = rng.random((int(rng.integers(5, 17)),) * 2, dtype=np.float32)
        fine = Image.fromarray(coarse).resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(fine, dtype=np.float64)
    if kind == "blobs":
        field = np.zeros((size, size))
        for x, y, radius in rng.uniform((0, 0, 0.08), (1, 1, 0.2), (5, 3)):
            field += np.outer(
                np.exp(-(((at - y) / radius) ** 2)), np.exp(-(((at - x) / radius) ** 2))
            )
        return field.clip(0, 1)
    angle = rng.uniform(0, 2 * math.pi)
    along = np.add.outer(math.sin(angle) * (at - 0.5), math.cos(angle) * (at - 0.5))
    if kind == "gradient":
        return along / math.sqrt(2) + 0.5
    return 0.5 + 0.5 * np.sin(2 * math.pi * (rng.uniform(2, 8) * along + rng.random()))


def _figure(rng: np.random.Generator, figure: _Figure, size: int, difficulty: float) -> Image.Image:
    """The mask of one figure, supersampled: its place, size, angle and line width drawn anew."""
    side = size * _SUPERSAMPLING
    radius = 0.85 - 0.4 * difficulty * rng.random()
    place = difficulty * (1 - radius) * rng.uniform(-1, 1, 2)
    angle = difficulty * math.radians(figure.turn) * rng.uniform(-1, 1)
    stretch = math.exp(0.1 * difficulty * rng.uniform(-1, 1))
    pen = 0.2 + 0.07 * difficulty * rng.uniform(-1, 1)
    mirror = rng.choice([-1, 1])
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    matrix = radius * turn @ np.diag([stretch * mirror, 1 / stretch])
    canvas = _Canvas(side, matrix * side / 2, (place + 1) * side / 2, pen, rng)
    figure.draw(canvas)
    return canvas.mask


def _clutter(rng: np.random.Generator, size: int, difficulty: float) -> Image.Image:
    """The mask of up to four splinters, small beside any figure, anywhere; supersampled."""
    side = size * _SUPERSAMPLING
    mask = Image.new("L", (side, side))
    draw = ImageDraw.Draw(mask)
    for _ in range(round(difficulty * rng.integers(0, 5))):
        corners = side * (rng.random(2) + rng.uniform(-0.07, 0.07, (3, 2)))
        draw.polygon([(x, y) for x, y in corners.tolist()], fill=255)
    return mask


def load(
    root: Path | None = None,
    *,
    classes: int = 30,
    train_per_class: int = 40,
    test_per_class: int = 20,
    size: int = 64,
    seed: int = 0,
    difficulty: float = 1.0,
) -> Dataset:
    """Draw the first `classes` of `CLASSES`; see `picture` for `difficulty`.

    `root` is there so that every dataset is loaded alike; nothing is read from disk.
    """
    if not 1 <= classes <= len(CLASSES):
        raise ConfigError(f"shapes: classes must be 1 to {len(CLASSES)}, not {classes}")
    if min(train_per_class, test_per_class) < 1:
        raise ConfigError(
            "shapes: each class needs at least 1 image in each part, "
            f"not train_per_class={train_per_class}, test_per_class={test_per_class}"
        )
    if size < 16:
        raise ConfigError(f"shapes: size must be at least 16 pixels, not {size}")
    if not 0 <= difficulty <= 1:
        raise ConfigError(f"shapes: difficulty must be 0 to 1, not {difficulty}")
    names = CLASSES[:classes]

    def part(name: str, count: int) -> ImageSet:
        images = np.empty((classes, count, size, size, 3), dtype=np.uint8)
        for label, index in np.ndindex(classes, count):
            images[label, index] = draw_image(
                names[label], name, index, size=size, seed=seed, difficulty=difficulty
            )
        labels = np.repeat(np.arange(classes, dtype=np.int64), count)
        return ImageSet(images.reshape(-1, size, size, 3), labels, names)

    return Dataset("shapes", part("train", train_per_class), part("test", test_per_class))
