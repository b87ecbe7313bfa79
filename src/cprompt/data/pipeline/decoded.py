"""Decoded images by number, wherever their pixels come from: a file, a cache or memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cprompt.data.image_files import read_image
from cprompt.data.pipeline.parallel import DECODING_THREADS, VIEW_THREADS, map_in_order

ImageArray: TypeAlias = NDArray[np.uint8]
"""One image: (height, width, 3), RGB levels."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of images done and of all images."""


@dataclass(frozen=True)
class DecodedImages:
    """Upright RGB images by number, loaded when asked for; their arrays are read-only.

    >>> images = DecodedImages(lambda i: np.full((2, 3, 3), i, np.uint8), count=4)
    >>> int(images.subset([3, 1])[0].max())
    3
    """

    load: Callable[[int], ImageArray]
    """Image i, from 0 to `count` - 1."""
    count: int
    sizes: NDArray[np.int64] | None = None
    """(count, 2): height and width of each image; None where only decoding tells."""
    threads: int = 0
    """How many threads may load at the same time; 0 where `load` belongs to the caller's thread."""
    in_order: Callable[[], Generator[ImageArray, None, None]] | None = None
    """All images in order, where there is a better way than to `load` them in threads."""

    @property
    def view_threads(self) -> int:
        """How many threads may cut views of the images while a backbone computes."""
        return min(self.threads, VIEW_THREADS)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> ImageArray:
        return self.load(int(index))

    def subset(self, indices: Sequence[int] | NDArray[np.int64]) -> DecodedImages:
        """The images at `indices`, in that order; no pixel is copied."""
        chosen = np.asarray(indices, dtype=np.int64)
        sizes = None if self.sizes is None else self.sizes[chosen]
        return DecodedImages(lambda i: self[chosen[i]], len(chosen), sizes, self.threads)

    def in_memory(
        self, progress: Progress | None = None, limit: int | None = None
    ) -> DecodedImages:
        """Load every image now, so that a bad one is named before any work, and keep it.

        Past `limit` bytes an image is not kept but loaded again whenever it is asked for.
        """
        return self._keeping(self._in_order(), progress, limit)

    def in_parts(
        self, size: int, progress: Progress | None = None, limit: int | None = None
    ) -> Generator[DecodedImages, None, None]:
        """`size` images at a time, in order, each part `in_memory` with this `limit`.

        Threads go on with the next part while the reader is busy with one.
        """
        with closing(self._in_order()) as images:
            for first in range(0, self.count, size):

                def count(done: int, _: int, before: int = first) -> None:
                    if progress:
                        progress(before + done, self.count)

                part = self.subset(range(first, min(first + size, self.count)))
                yield part._keeping(islice(images, len(part)), count, limit)

    def _in_order(self) -> Generator[ImageArray, None, None]:
        if self.in_order is not None:
            return self.in_order()
        return map_in_order(self.load, range(self.count), self.threads)

    def _keeping(
        self, images: Iterable[ImageArray], progress: Progress | None, limit: int | None
    ) -> DecodedImages:
        """These images, as `images` gives them, in memory."""
        kept: list[ImageArray | None] = []
        room = float("inf") if limit is None else limit
        for image in images:
            fits = image.nbytes <= room
            room -= image.nbytes if fits else 0
            kept.append(image if fits else None)
            if progress:
                progress(len(kept), self.count)

        def load(i: int) -> ImageArray:
            image = kept[i]
            return self.load(i) if image is None else image

        shapes = [image.shape[:2] for image in kept if image is not None]
        sizes = np.array(shapes, np.int64).reshape(-1, 2) if len(shapes) == self.count else None
        return DecodedImages(load, self.count, sizes, self.threads)


def content_key(image: ImageArray) -> int:
    """A number in [0, 2^63) that follows from the pixels alone.

    So what is drawn or chosen by it does not depend on when an image came, or among which others.
    """
    digest = hashlib.blake2b(repr(image.shape).encode(), digest_size=8)
    digest.update(np.ascontiguousarray(image).data)
    return int.from_bytes(digest.digest(), "little") >> 1


def content_keys(images: DecodedImages) -> NDArray[np.int64]:
    """`content_key` of every image (count,)."""
    keys = map_in_order(lambda i: content_key(images[i]), range(len(images)), images.threads)
    return np.fromiter(keys, np.int64, len(images))


def from_files(files: Sequence[Path]) -> DecodedImages:
    """The images in `files`; each access decodes one."""
    return DecodedImages(
        lambda i: np.asarray(read_image(files[i])), len(files), threads=DECODING_THREADS
    )


def from_array(images: NDArray[np.uint8]) -> DecodedImages:
    """The images of one array (n, height, width, 3), which is not copied."""
    sizes = np.tile(np.array(images.shape[1:3], dtype=np.int64), (len(images), 1))
    return DecodedImages(images.__getitem__, len(images), sizes)
