"""Figures that look like things: house, fish, tree, key."""

from __future__ import annotations

import math

import numpy as np

from cprompt.data.datasets.shapes.canvas import (
    Canvas,
    Figure,
    box,
    ellipse,
    symmetric,
)


def _arrow(c: Canvas) -> None:
    w, head = c.vary(0.15, 0.25), c.vary(0.1, 0.3)
    c.shape([(-1, -w), (head, -w), (head, -0.6), (1, 0), (head, 0.6), (head, w), (-1, w)])


def _double_arrow(c: Canvas) -> None:
    w, head = c.vary(0.15, 0.22), 0.4
    right = [(head, -w), (head, -0.6), (1, 0), (head, 0.6), (head, w)]
    c.shape(right + [(-x, -y) for x, y in right])


def _house(c: Canvas) -> None:
    c.fill(symmetric([(0, -0.95), (1, -0.1), (0.75, -0.1), (0.75, 0.9)]))
    door = c.vary(-0.35, 0.35)
    c.fill(box(door - 0.2, 0.25, door + 0.2, 0.9), ink=0)


def _fish(c: Canvas) -> None:
    c.fill(ellipse(0.68, c.vary(0.38, 0.48), x=0.25))
    c.fill([(-0.3, 0), (-0.95, -0.5), (-0.8, 0), (-0.95, 0.5)])
    c.disc(0.62, -0.1, 0.1, ink=0)


def _tree(c: Canvas) -> None:
    for top, wide in ((-1.0, 0.5), (-0.55, 0.65), (-0.1, 0.8)):
        c.fill([(0, top), (wide, top + 0.75), (-wide, top + 0.75)])
    c.fill(box(-0.14, 0.6, 0.14, 1.0))


def _key(c: Canvas) -> None:
    c.stroke(ellipse(0.33, 0.33, x=-0.6), closed=True)
    c.stroke([(-0.25, 0), (0.95, 0)])
    c.stroke([(0.9, 0), (0.9, 0.35)])
    c.stroke([(0.5, 0), (0.5, 0.35)])


def _mushroom(c: Canvas) -> None:
    angle = np.linspace(0, math.pi, 24)
    c.fill(np.stack([0.95 * np.cos(angle), 0.1 - np.sin(angle)], axis=1))
    stem = c.vary(0.2, 0.32)
    c.fill(symmetric([(stem, 0.1), (stem + 0.08, 0.95)]))


def _umbrella(c: Canvas) -> None:
    angle = np.linspace(0, math.pi, 24)
    c.fill(np.stack([np.cos(angle), 0.05 - 0.9 * np.sin(angle)], axis=1))
    for x in (-0.66, 0.0, 0.66):
        c.disc(x, 0.1, 0.26, ink=0)
    c.stroke([(0, -0.1), (0, 0.8), (0.12, 0.93), (0.3, 0.8)], width=0.7 * c.pen)


def _cup(c: Canvas) -> None:
    c.stroke(ellipse(0.35, 0.38, x=0.5), closed=True)
    c.fill(box(-0.85, -0.75, 0.45, 0.8))


def _boat(c: Canvas) -> None:
    c.fill(symmetric([(1, 0.4), (0.65, 0.9)]))
    c.fill([(0.08, -1), (0.85, 0.25), (0.08, 0.25)])
    c.fill([(-0.08, -0.75), (-0.08, 0.25), (-0.65, 0.25)])


def _anchor(c: Canvas) -> None:
    c.stroke(ellipse(0.2, 0.2, y=-0.75), closed=True, width=0.8 * c.pen)
    c.stroke([(0, -0.5), (0, 0.85)])
    c.stroke([(-0.4, -0.25), (0.4, -0.25)])
    angle = np.linspace(0, math.pi, 16)
    c.stroke(np.stack([0.8 * np.cos(angle), 0.2 + 0.68 * np.sin(angle)], axis=1))


def _butterfly(c: Canvas) -> None:
    for x in (-0.5, 0.5):
        c.fill(ellipse(0.45, 0.5, x, -0.38))
        c.fill(ellipse(0.35, 0.4, 0.85 * x, 0.45))
    c.stroke([(0, -0.7), (0, 0.75)], width=0.8 * c.pen)


def _face(c: Canvas) -> None:
    c.disc(0, 0, 0.95)
    for x in (-0.35, 0.35):
        c.disc(x, -0.25, 0.17, ink=0)
    angle = np.linspace(math.radians(15), math.radians(165), 16)
    mouth = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    c.fill(np.concatenate([mouth * (0.6, 0.6), mouth[::-1] * (0.6, 0.3)]), ink=0)


THINGS: dict[str, Figure] = {
    "key": Figure(_key, 180),
    "fish": Figure(_fish),
    "house": Figure(_house),
    "tree": Figure(_tree),
    "arrow": Figure(_arrow, 180),
    "mushroom": Figure(_mushroom),
    "double arrow": Figure(_double_arrow, 180),
    "umbrella": Figure(_umbrella),
    "cup": Figure(_cup),
    "boat": Figure(_boat),
    "face": Figure(_face),
    "anchor": Figure(_anchor),
    "butterfly": Figure(_butterfly),
}
