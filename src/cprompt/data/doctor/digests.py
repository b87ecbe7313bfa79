"""What the doctor keeps of each image: digests of its file and its pixels, or why it is broken."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from cprompt.data.image_files import read_image
from cprompt.data.image_set import Dataset
from cprompt.data.near_duplicates import Look, look
from cprompt.data.pipeline.parallel import map_in_order
from cprompt.errors import DataError


@dataclass(frozen=True)
class ImageDigest:
    """One image of a dataset, reduced to digests and its look; or `error`, why it cannot be."""

    name: str
    part: str
    label: int
    stored: bytes = b""
    pixels: bytes = b""
    look: Look | None = field(default=None, compare=False)
    """See `cprompt.data.near_duplicates`."""
    error: str | None = None


def digest_images(
    dataset: Dataset, workers: int, progress: Callable[[int, int], None]
) -> list[ImageDigest]:
    """Decode every image, training images first, in the order of the dataset."""
    jobs = [
        (part, index)
        for part, images in (("train", dataset.train), ("test", dataset.test))
        for index in range(len(images))
    ]

    def digest(job: tuple[str, int]) -> ImageDigest:
        part, index = job
        images = dataset.train if part == "train" else dataset.test
        source, label = images.images[index], int(images.labels[index])
        if not isinstance(source, Path):
            levels = _digest(source.shape, source.tobytes())
            seen = look(Image.fromarray(source))
            return ImageDigest(f"{part}[{index}]", part, label, levels, levels, seen)
        try:
            image = read_image(source)
        except DataError as error:
            return ImageDigest(str(source), part, label, error=f"{source}: {error.message}")
        stored = _digest(None, source.read_bytes())
        pixels = _digest(image.size, image.tobytes())
        return ImageDigest(str(source), part, label, stored, pixels, look(image))

    found = []
    for each in map_in_order(digest, jobs, workers):
        found.append(each)
        progress(len(found), len(jobs))
    return found


def _digest(shape: Hashable, content: bytes) -> bytes:
    return hashlib.blake2b(repr(shape).encode() + content, digest_size=16).digest()
