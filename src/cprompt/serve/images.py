"""Uploaded images: checked by their headers, then decoded."""

from __future__ import annotations

from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from cprompt.data.image_files import decode_image, formats, unidentified
from cprompt.data.pipeline.reduced import MAX_ASPECT
from cprompt.errors import DataError
from cprompt.serve.config import Limits
from cprompt.serve.errors import RequestError, explain


def check_image(file: BinaryIO, name: str, limits: Limits) -> tuple[int, int]:
    """Width and height of an image, from its header; a RequestError if it must not be decoded."""
    try:
        with Image.open(file, formats=formats()) as image:
            width, height = image.size
    except Image.DecompressionBombError:
        raise _too_many_pixels(name, limits) from None
    except UnidentifiedImageError:
        raise _not_an_image(name, unidentified(file, name).message) from None
    except MemoryError:
        raise
    except Exception as error:  # decoders meet broken files with almost any exception
        raise _not_an_image(name, "is damaged") from error
    finally:
        if not file.closed:
            file.seek(0)
    if width < 1 or height < 1:
        raise _not_an_image(name, f"is {width} x {height} pixels")
    if width * height > limits.max_pixels:
        raise _too_many_pixels(name, limits)
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise RequestError(
            422,
            "image_too_long",
            f"{name} is {width} x {height} pixels, too long and thin to be a photo",
            file=name,
            rule=f"one side at most {MAX_ASPECT} times the other",
        )
    return width, height


def decode_upload(file: BinaryIO, name: str, side: int | None = None) -> Image.Image:
    """A checked image as upright RGB; a RequestError if it turns out to be damaged.

    With `side`, see `decode_image`.
    """
    try:
        return decode_image(file, name, side)
    except DataError as error:
        told = explain(error, names={name: name})
        raise RequestError(422, "not_an_image", told.message, file=name) from error


def _not_an_image(name: str, what: str) -> RequestError:
    rule = f"an image: {', '.join(formats())}"
    return RequestError(422, "not_an_image", f"{name} {what}", file=name, rule=rule)


def _too_many_pixels(name: str, limits: Limits) -> RequestError:
    return RequestError(
        413,
        "too_many_pixels",
        f"{name} has more than {limits.max_pixels:,} pixels; send a smaller version",
        file=name,
        rule=f"at most {limits.max_pixels:,} pixels",
    )
