"""A dataset without a fault, for the doctor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def healthy(tmp_path: Path, image: Callable[..., None]) -> Path:
    """Two classes with 6 and 5 training images and 2 and 1 test images, all different."""
    for value, name in enumerate(
        [f"train/a/{i}.png" for i in range(6)]
        + [f"train/b/{i}.png" for i in range(5)]
        + ["test/a/0.png", "test/a/1.png", "test/b/0.png"]
    ):
        image(name, value)
    return tmp_path
