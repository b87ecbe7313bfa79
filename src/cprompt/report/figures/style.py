"""How a series looks: its colour, marker and line, also for readers who do not see colours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

# Okabe and Ito's colours, which people with any common colour blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#777777")
MARKERS = "osD^vPX*"
LINES = ("-", "--", "-.", ":")
INK = "#010203"
"""Stands for the text colour of the page; `files.to_svg` replaces it."""


class Style(NamedTuple):
    """Colour, marker and line of a series; the first 32 are all different, even without colour."""

    color: str
    marker: str
    linestyle: str


def style_at(index: int) -> Style:
    """The style of the series at that position."""
    turn, place = divmod(index, len(COLOURS))
    marker = MARKERS[(place + 3 * turn) % len(MARKERS)]
    return Style(COLOURS[place], marker, LINES[turn % len(LINES)])


def colour_of(label: str, labels: Iterable[str]) -> str:
    """The colour that `label` has among `labels`, also where a figure leaves some of them out."""
    return style_at(list(labels).index(label)).color
