"""Images from files as the photo classifier takes them: upright RGB, not too narrow, reduced.

Imports no torch: processes that only decode use it.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TypeAlias

from PIL import Image

from cprompt.data.image_files import decode_image, read_image
from cprompt.data.tar_shards import TarImage
from cprompt.data.urls import is_url, opened
from cprompt.errors import DataError

MAX_ASPECT = 50
"""Largest ratio of long to short side. Images are resized by their short side before the central
square is cropped, so a line of pixels would fill the memory."""

ImageFile: TypeAlias = str | os.PathLike[str] | TarImage
"""A path or a URL, or an image in a tar file."""


def read_reduced(file: ImageFile, side: int | None) -> Image.Image:
    """The image in `file`, upright RGB, checked; with `side`, reduced as by `shrunk`."""
    name = str(file)
    if isinstance(file, TarImage):
        image = decode_image(io.BytesIO(file.read()), name, side)
    elif isinstance(file, str) and is_url(file):
        with opened(file) as content:
            image = decode_image(io.BytesIO(content.read()), name, side)
    else:
        image = read_image(Path(file), side)
    return reduced(image, name, side)


def reduced(image: Image.Image, name: str, side: int | None) -> Image.Image:
    """The image, with `side` reduced as by `shrunk`.

    A DataError, which calls it `name`, if it is empty or too narrow to crop a square from.
    """
    if min(image.size) < 1 or max(image.size) > MAX_ASPECT * min(image.size):
        raise DataError(
            f"has {image.width}×{image.height} pixels; one side may be at most {MAX_ASPECT} times "
            "the other",
            file=name,
            hint="crop it, or leave it out",
        )
    return image if side is None else shrunk(image, side)


def shrunk(image: Image.Image, side: int) -> Image.Image:
    """The image, reduced so that its short side is at most `side`; proportions are kept."""
    scale = side / min(image.size)
    if scale >= 1:
        return image
    width, height = (max(1, round(scale * length)) for length in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)
