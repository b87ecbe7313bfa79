"""Figures of lines and dots, counted."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cprompt.data.datasets.shapes.lines import LINES
from tests.data.datasets.shapes.common import drawn


def stretches(line: NDArray[np.bool_]) -> int:
    """How many separate stretches of ink a line through the image meets."""
    return int((np.diff(line.astype(int), prepend=0) == 1).sum())


@pytest.mark.parametrize(
    ("name", "row", "count"),
    [("three bars", 100, 3), ("letter H", 40, 2), ("letter H", 100, 1), ("grid", 100, 2),
     ("quincunx", 35, 2), ("quincunx", 100, 1), ("nested squares", 100, 3)],
)  # fmt: skip
def test_a_row_meets_as_many_lines_as_the_figure_has_there(name: str, row: int, count: int) -> None:
    assert stretches(drawn(LINES[name])[row]) == count


def test_a_letter_is_mirror_symmetric() -> None:
    for name in ("letter A", "letter H", "letter T", "letter Y"):
        ink = drawn(LINES[name])
        assert (ink & ink[:, ::-1]).sum() / (ink | ink[:, ::-1]).sum() > 0.9


def test_the_number_of_dots_and_teeth_varies() -> None:
    for name in ("ring of dots", "zigzag", "ladder"):
        assert len({int(drawn(LINES[name], seed).sum()) for seed in range(6)}) > 1
