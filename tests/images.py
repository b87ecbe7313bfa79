"""Small sets of decoded images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cprompt.data.pipeline.decoded import DecodedImages


def grey_images(levels: Sequence[int], side: int = 4) -> DecodedImages:
    """One image of a single grey per level."""
    images = [np.full((side, side, 3), level, dtype=np.uint8) for level in levels]
    sizes = np.full((len(images), 2), side, dtype=np.int64)
    return DecodedImages(images.__getitem__, len(images), sizes)
