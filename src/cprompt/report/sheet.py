"""A page of thumbnails under headings: photos that a person should look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageOps

from cprompt.report import html

_SIDE = 160


@dataclass(frozen=True)
class Thumbnail:
    """A photo with (text, kind) lines below it; the kinds right, wrong and soft have colours."""

    image: Image.Image
    lines: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Shelf:
    """Photos under one heading; `explanation` says why they are here."""

    heading: str
    explanation: str
    photos: Sequence[Thumbnail]


def sheet_page(title: str, about: str, shelves: Sequence[Shelf]) -> str:
    """The page as HTML, in one file."""
    return html.render(
        "sheet",
        title=title,
        about=about,
        shelves=[
            (shelf.heading, shelf.explanation, [_shown(photo) for photo in shelf.photos])
            for shelf in shelves
        ],
    )


def _shown(photo: Thumbnail) -> tuple[str, Sequence[tuple[str, str]]]:
    """The whole photo, reduced; unlike a square cut from it, it shows why the label is in doubt."""
    return html.png_address(ImageOps.contain(photo.image, (_SIDE, _SIDE))), photo.lines
