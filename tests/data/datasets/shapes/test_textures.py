"""Outlines with a texture."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFilter

from cprompt.data.datasets.shapes.outlines import OUTLINES
from cprompt.data.datasets.shapes.textures import TEXTURES
from tests.data.datasets.shapes.common import drawn


@pytest.mark.parametrize("name", TEXTURES)
def test_a_texture_fills_part_of_its_outline_and_nothing_outside(name: str) -> None:
    outline = drawn(OUTLINES[name.split()[1]])
    ink = drawn(TEXTURES[name])
    share = (ink & outline).sum() / outline.sum()
    assert 0.3 < share < 0.85
    border = Image.fromarray(outline).convert("L").filter(ImageFilter.MaxFilter(13))
    assert not (ink & (np.asarray(border) == 0)).any()  # its line is 5 pixels wide outside


def test_stripes_run_across_and_checks_do_not() -> None:
    def changes(name: str) -> tuple[int, int]:
        ink = drawn(TEXTURES[name]).astype(int)[30:170, 30:170]
        return int(np.abs(np.diff(ink, axis=0)).sum()), int(np.abs(np.diff(ink, axis=1)).sum())

    down, across = changes("striped square")
    assert across == 0 < down
    down, across = changes("checkerboard square")
    assert across == pytest.approx(down, rel=0.1)
