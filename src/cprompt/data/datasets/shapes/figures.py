"""Every class of figure, by name, in the order of the labels."""

from __future__ import annotations

from cprompt.data.datasets.shapes.canvas import Figure
from cprompt.data.datasets.shapes.lines import LINES
from cprompt.data.datasets.shapes.outlines import OUTLINES
from cprompt.data.datasets.shapes.textures import TEXTURES
from cprompt.data.datasets.shapes.things import THINGS

CLASSES: tuple[str, ...] = (
    "disc",
    "five-point star",
    "square",
    "key",
    "ring",
    "six-point star",
    "rhombus",
    "fish",
    "crescent",
    "gear",
    "rectangle",
    "house",
    "hexagon",
    "sun",
    "striped square",
    "tree",
    "pentagon",
    "flower",
    "checkerboard disc",
    "arrow",
    "cross",
    "zigzag",
    "dotted triangle",
    "heart",
    "letter T",
    "spiral",
    "checkerboard square",
    "oval",
    "letter Y",
    "dotted disc",
    "triangle",
    "bull's eye",
    "wave",
    "mushroom",
    "four-point star",
    "striped disc",
    "letter H",
    "double arrow",
    "trapezoid",
    "nested squares",
    "umbrella",
    "saltire",
    "dotted square",
    "half disc",
    "letter A",
    "ring of dots",
    "chevron",
    "cup",
    "striped triangle",
    "drop",
    "hourglass",
    "boat",
    "grid",
    "quincunx",
    "face",
    "leaf",
    "anchor",
    "ladder",
    "butterfly",
    "three bars",
)
"""Families are mixed, so that the first few classes already differ in kind. An image's random
numbers depend on the place of its class here: a new class goes to the end."""

FIGURES: dict[str, Figure] = OUTLINES | LINES | THINGS | TEXTURES
