"""Figures drawn large on a canvas of their own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cprompt.data.datasets.shapes.canvas import Canvas, Figure

SIDE = 200
UNIT = SIDE / 2


def canvas(seed: int = 0, hollow: bool = False) -> Canvas:
    """Coordinates -1 to 1 fill the canvas; the pen is a tenth of it wide."""
    matrix, origin = UNIT * np.eye(2), np.array([UNIT, UNIT])
    made = Canvas(SIDE, matrix, origin, 0.2, np.random.default_rng(seed))
    made.hollow = hollow
    return made


def drawn(figure: Figure, seed: int = 0, hollow: bool = False) -> NDArray[np.bool_]:
    """Where the figure has ink; area in units of the figure is `mean() * 4`."""
    made = canvas(seed, hollow)
    figure.draw(made)
    return np.asarray(made.mask) > 127
