"""What is found out about an image where it is decoded, be it in a thread or in another process.

Imports no torch: processes that only decode use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from cprompt.data.near_duplicates import Look, look
from cprompt.data.pipeline.decoded import ImageArray, content_key

FLAT = 3
"""Levels of 255 by which the pixels of a blank image may differ, as JPEG and dust make them."""


@dataclass(frozen=True)
class Inspection:
    """What to find out about every image that is decoded, and whom to tell."""

    find: Callable[[ImageArray], Any]
    """A function of this module, so that other processes can import it."""
    tell: Callable[[int, Any], None]
    """Called in the reader's thread with the number of each image, in order, and what was found."""


def nothing(image: ImageArray) -> None:
    """Find nothing out."""


NO_INSPECTION = Inspection(nothing, lambda number, found: None)


class Sameness(NamedTuple):
    """What tells whether two images are the same, or look so."""

    key: int
    look: Look


def sameness(image: ImageArray) -> Sameness:
    """The image's content key and its look."""
    return Sameness(content_key(image), look(Image.fromarray(image)))


def is_blank(image: ImageArray) -> bool:
    """Whether an image shows nothing: all its pixels have the same colour, but for `FLAT`.

    Such an image is near to some class all the same, since a network sees something in anything.
    """
    rows = image.reshape(len(image), -1)  # fast: the long axis is reduced last
    high, low = (
        found.reshape(-1, image.shape[2]).astype(np.int16) for found in (rows.max(0), rows.min(0))
    )
    return bool((high.max(0) - low.min(0)).max() <= FLAT)
