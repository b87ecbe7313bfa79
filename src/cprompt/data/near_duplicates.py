"""Images that look the same although their files differ: another size, another compression."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Look: TypeAlias = NDArray[np.uint8]
"""An image reduced to (16, 17, 3) levels."""

BITS_APART = 26
"""Of 256 neighbours that are compared, those that may be ordered differently in two images."""
LEVELS_APART = 10.0
"""How much the levels of two images may differ, on average."""
FLAT = 1.0
"""Standard deviation of brightness below which an image has nothing to be recognised by."""
MOST = 20_000
"""Images beyond which `look_alikes` takes minutes: its cost grows with the square."""

_SIZE = (17, 16)
_AT_ONCE = 1024


def look(image: Image.Image) -> Look:
    """What of an upright RGB image is compared with others.

    >>> look(Image.new("RGB", (640, 480))).shape
    (16, 17, 3)
    """
    small = image.resize(_SIZE, Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.asarray(small.convert("RGB"))


def look_alikes(looks: NDArray[np.uint8]) -> list[list[int]]:
    """Groups of indices of images (n, 16, 17, 3) that look the same, in order of appearance.

    Two images do if a perceptual hash and the colours agree. The hash (dHash) has one bit per
    place: is the next pixel to the right brighter? An image that looks like any of a group belongs
    to it. Flat images, such as blank pages, look like no other.
    """
    count = len(looks)
    bits, colours = _signs(looks), looks.astype(np.float32)
    flat = colours.mean(axis=3).std(axis=(1, 2)) < FLAT
    first = np.arange(count)
    for start in range(0, count, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        # Of 256 signs, equal ones add 1 to the product, others take 1 away.
        apart = (bits.shape[1] - bits[part] @ bits[start:].T) / 2
        rows, columns = np.nonzero(apart <= BITS_APART)
        pairs = np.stack([rows, columns], axis=1)[rows < columns] + start
        for i, j in pairs:
            if not flat[i] and np.abs(colours[i] - colours[j]).mean() <= LEVELS_APART:
                a, b = _root(first, i), _root(first, j)
                first[max(a, b)] = min(a, b)
    groups: dict[int, list[int]] = {}
    for i in range(count):
        groups.setdefault(_root(first, i), []).append(i)
    return [group for group in groups.values() if len(group) > 1]


def _signs(looks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 256): +1 where brightness grows to the right, else -1."""
    grey = looks.astype(np.float32).sum(axis=3)
    brighter = grey[:, :, 1:] > grey[:, :, :-1]
    return np.where(brighter, 1, -1).astype(np.float32).reshape(len(looks), 256)


def _root(first: NDArray[np.int64], i: int) -> int:
    """The first image of i's group, and a shorter way to it."""
    while first[i] != i:
        first[i] = first[first[i]]
        i = int(first[i])
    return i
