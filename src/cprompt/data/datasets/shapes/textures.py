"""Outlines filled with stripes, checks or dots."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cprompt.data.datasets.shapes.canvas import (
    DISC,
    SQUARE,
    TRIANGLE,
    Canvas,
    Figure,
    Points,
    box,
)


def _stripes(c: Canvas) -> None:
    edges = np.linspace(-1, 1, 2 * int(c.rng.integers(4, 6)))
    for top, bottom in zip(edges[::2], edges[1::2], strict=True):
        c.fill(box(-1.1, top, 1.1, bottom))


def _checks(c: Canvas) -> None:
    count = int(c.rng.integers(4, 6))
    edges = np.linspace(-1, 1, count + 1)
    for row in range(count):
        for column in range(row % 2, count, 2):
            c.fill(box(edges[column], edges[row], edges[column + 1], edges[row + 1]))


def _polka(c: Canvas) -> None:
    step = c.vary(0.44, 0.52)
    for row in range(-2, 3):
        for column in range(-3, 3):
            c.disc((column + 0.5 * (row % 2)) * step, row * step, 0.33 * step)


def _textured(pattern: Callable[[Canvas], None], outline: Points) -> Callable[[Canvas], None]:
    def draw(c: Canvas) -> None:
        pattern(c)
        c.clip(outline)
        c.stroke(outline, closed=True, width=0.1)

    return draw


TEXTURES: dict[str, Figure] = {
    "striped square": Figure(_textured(_stripes, SQUARE), 180),
    "checkerboard disc": Figure(_textured(_checks, DISC), 180),
    "dotted triangle": Figure(_textured(_polka, TRIANGLE)),
    "checkerboard square": Figure(_textured(_checks, SQUARE)),
    "dotted disc": Figure(_textured(_polka, DISC), 180),
    "striped disc": Figure(_textured(_stripes, DISC), 180),
    "dotted square": Figure(_textured(_polka, SQUARE)),
    "striped triangle": Figure(_textured(_stripes, TRIANGLE)),
}
