"""One image of a figure: colours, background, place, clutter, blur and noise."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from cprompt.data.datasets.shapes.canvas import Canvas, Figure, Points
from cprompt.data.datasets.shapes.figures import CLASSES, FIGURES
from cprompt.seeds import mix

_SUPERSAMPLING = 3
_LUMA = np.array([0.299, 0.587, 0.114])
_PARTS = {"train": 0, "test": 1}


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
    pixels = _paint(pixels, _figure(rng, FIGURES[name], size, difficulty), ink)
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


def _figure(rng: np.random.Generator, figure: Figure, size: int, difficulty: float) -> Image.Image:
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
    canvas = Canvas(side, matrix * side / 2, (place + 1) * side / 2, pen, rng)
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
