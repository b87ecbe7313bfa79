"""A page of thumbnails under headings: photos that a person should look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cprompt.report import html


@dataclass(frozen=True)
class Thumbnail:
    """A photo with (text, kind) lines below it; the kinds right, wrong and soft have colours."""

    address: str
    """See `html.whole_thumbnail`: a square cut from the photo might not show why it is here."""
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
            (
                shelf.heading,
                shelf.explanation,
                [(photo.address, photo.lines) for photo in shelf.photos],
            )
            for shelf in shelves
        ],
    )
